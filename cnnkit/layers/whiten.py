"""A first convolution that whitens the image's patches: its filters come from the data and stay fixed."""

import jax
import jax.numpy as jnp

from cnnkit.layers.convolve import ALGORITHMS, convolve
from cnnkit.layers.dense import not_negative
from cnnkit.layers.layer import Layer, Params, State
from cnnkit.layers.product import Window, columns
from cnnkit.layers.window import need_image, out_size, pair, title
from cnnkit.names import choose

_PADS = ((0, 0), (0, 0))


def whiten(
    size=2, *, bias: bool = True, eps: float = 5e-4, algorithm: str = "auto", lr: float = 1.0
) -> Layer:
    """Projections on the patches' principal directions, each by its deviation, and their negatives.

    w = ±U / √(λ + eps), where U and λ are eigenvectors and eigenvalues of the second moments of the patches
    of a sample of training images. [B, H, W, C] -> [B, H − h + 1, W − w + 1, 2·h·w·C]. The filters are no
    parameters and take no gradient: `measure` puts them into the state before the training; until then they
    are 0.

    Args:
        size: of the patches in pixels, one number or (height, width).
        bias: whether a learned bias is added to each channel.
        eps: added to the eigenvalues, so that directions without content are not blown up.
        algorithm: as in `conv`.
        lr: factor on the learning rate of the bias.

    Page 2019, Jordan 2024.

    >>> params, state, shape = whiten(2).init(jax.random.key(0), (8, 8, 3))
    >>> sorted(params), state["w"].shape, shape
    (['b'], (2, 2, 3, 24), (7, 7, 24))
    """
    size = pair(size, "size")
    if not eps > 0:
        raise ValueError(f"eps={eps!r}: a number above 0 is needed")
    choose(algorithm, {"auto": None, **ALGORITHMS}, "algorithm of convolution")

    def init(key, shape):
        need_image(shape, "whiten")
        rows, cols = out_size(shape, size, (1, 1), _PADS)
        features = 2 * size[0] * size[1] * shape[-1]
        params = {"b": jnp.zeros(features)} if bias else {}
        return params, {"w": jnp.zeros((*size, shape[-1], features))}, (rows, cols, features)

    def apply(params, state, x, *, key=None, train=False):
        half = state["w"][..., : state["w"].shape[-1] // 2].astype(x.dtype)
        # On a GPU its convolutions are slow where an image has few channels.
        here = "matmul" if algorithm == "auto" and jax.default_backend() != "cpu" else algorithm
        y = convolve(x, half, Window((1, 1), _PADS), here, train)
        y = jnp.concatenate([y, -y], axis=-1)
        return y + params["b"].astype(x.dtype) if bias else y, state

    def fit(state, x):
        return {"w": whitening(x, size, eps).reshape(state["w"].shape)}

    config = {"size": size, "bias": bias, "eps": eps, "algorithm": algorithm}
    return Layer(
        init,
        apply,
        "whiten",
        config,
        flops=lambda shape, out: (2 * size[0] * size[1] * shape[-1] + bias) * out[0] * out[1] * out[2],
        lr=not_negative(lr, "lr"),
        title=title("whiten", config),
        measure=fit,
    )


def whitening(x: jax.Array, size: tuple[int, int], eps: float) -> jax.Array:
    """Whitening filters float32 [h · w · C, 2 · h · w · C] of images [B, H, W, C], largest direction first."""
    patches = columns(x.astype(jnp.float32), size, Window((1, 1), _PADS))
    patches = patches.reshape(-1, patches.shape[-1])
    moments = jnp.matmul(patches.T, patches, precision=jax.lax.Precision.HIGHEST) / len(patches)
    values, vectors = jnp.linalg.eigh(moments)
    # Rounding may leave a direction without content a little below 0.
    half = (vectors / jnp.sqrt(jnp.maximum(values, 0) + eps))[:, ::-1]
    return jnp.concatenate([half, -half], axis=1)


def measure(net: Layer, params: Params, state: State, x: jax.Array) -> State:
    """The state with what layers take from the data, before the training.

    Args:
        net: the network.
        params, state: as drawn.
        x: a sample of the network's input [B, …].

    Returns:
        the state, with the filters of every `whiten`; the same one where no layer measures.
    """
    if net.measure is not None:
        return net.measure(state, x)
    if not measures(net):
        return state
    out = list(state)
    for i, part in enumerate(net.parts):
        out[i] = measure(part, params[i], out[i], x)
        if net.join is None and any(map(measures, net.parts[i + 1 :])):
            x, _ = part.apply(params[i], out[i], x)
    return tuple(out)


def measures(net: Layer) -> bool:
    """Whether some layer of the network takes something from the data before the training."""
    return net.measure is not None or any(map(measures, net.parts))
