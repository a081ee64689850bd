"""A first convolution that whitens the image's patches: its filters come from the data and stay fixed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.layers.convolve import ALGORITHMS, convolve, direct
from cnnkit.layers.dense import not_negative
from cnnkit.layers.fold import Pending, folded
from cnnkit.layers.layer import Layer, Params, State, is_own
from cnnkit.layers.product import Window, columns
from cnnkit.layers.window import need_image, out_size, pair, title
from cnnkit.names import choose

_PADS = ((0, 0), (0, 0))
_GATES = ("relu", "leaky_relu", "gelu", "silu")  # element by element


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

    def fused(after):
        # On a GPU: a narrow convolution of what is pooled afterwards is computed on folded images (fold.py), and
        # to make them folded takes less than to fold them.
        if jax.default_backend() == "cpu" or len(after) < 3 or algorithm != "auto":
            return None
        gate, filters, pool = after[:3]
        takes = is_own(filters, "conv") and filters.fused is not None and is_own(pool, "max_pool")
        if not (is_own(gate, *_GATES) and takes):
            return None
        return lambda *given, **how: _gated(apply, gate, *given, **how), 1

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
        fused=fused,
    )


def _gated(apply: Any, gate: Layer, params, state, x, *, key=None, train=True):
    """What the layer gives through an activation, made by who takes it."""
    half = state["w"][..., : state["w"].shape[-1] // 2].astype(x.dtype)
    shape = out_size(x.shape[1:], half.shape[:2], (1, 1), _PADS)
    gated = lambda y: gate.apply((), (), y, train=train)[0]

    def made_folded(edges, side):
        pads = edges[1][:2], edges[2][:2]
        y = folded(direct, x, half, Window((1, 1), pads), side)
        y = jnp.concatenate([y, -y], -1)
        y = gated(y + params["b"].astype(x.dtype) if params else y)
        # Beside the image there is nothing, where a filter that reaches inside would have found something.
        rows, cols = (
            _inside(n, near, count, f) for n, (near, _), count, f in zip(shape, pads, y.shape[1:3], side)
        )
        kept = (rows[:, None, :, None] & cols[None, :, None, :]).reshape(*y.shape[1:4], 1)
        return jnp.where(kept, y, 0).reshape(*y.shape[:3], -1)

    whole = lambda: gated(apply(params, state, x, train=train)[0])
    return Pending((len(x), *shape, 2 * half.shape[-1]), x.dtype, whole, made_folded), state


def _inside(n: int, near: int, squares: int, side: int) -> np.ndarray:
    """[squares, side]: whether each place is one of the n after the padding."""
    place = np.arange(squares * side).reshape(squares, side) - near
    return (place >= 0) & (place < n)


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
