"""Convolutional layers: shared weights, 1×1 stacks (NIN), and a kernel of its own at every place."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.layers.activate import rectify_kept, relu
from cnnkit.layers.convolve import ALGORITHMS, convolve, direct
from cnnkit.layers.dense import count, not_negative
from cnnkit.layers.fold import Pending, folded, folds, neighbours
from cnnkit.layers.initial import Initial, check_initial, initial_weights
from cnnkit.layers.layer import Apply, Layer, Shape, ShapeError, is_own, own, serial
from cnnkit.layers.pool import largest
from cnnkit.layers.product import Window, columns
from cnnkit.layers.window import Padding, check_padding, need_image, out_size, pair, resolve, times, title
from cnnkit.names import choose


def conv(
    features: int,
    size,
    *,
    stride=1,
    padding: Padding = "valid",
    dilation=1,
    groups: int = 1,
    tied: bool = False,
    bias: bool = True,
    algorithm: str = "auto",
    decay: float = 0.0,
    lr: float = 1.0,
    init: Initial = "he",
) -> Layer:
    """Convolution, [B, H, W, C] -> [B, H', W', features]; weights are [height, width, C / groups, features].

    Args:
        features: number of output channels.
        size: of the kernel in pixels, one number or (height, width).
        stride: between windows.
        padding: ``"valid"``, ``"same"``, pixels, or ((top, bottom), (left, right)).
        dilation: distance between the kernel's pixels.
        groups: channels are split into that many groups that do not mix.
        tied: all groups have the same kernels and biases (CUDA-CNN's layer CONV).
        bias: whether to add a bias to each channel.
        algorithm: ``"direct"``, ``"matmul"``, ``"fft"``, or ``"auto"`` for the one measured fastest.
        decay: strength of the L2 penalty decay/2 · ‖w‖².
        lr: factor on the learning rate.
        init: initial weights, see `check_initial`.
    """
    features, groups = count(features, "features"), count(groups, "groups")
    size, stride, dilation = pair(size, "size"), pair(stride, "stride"), pair(dilation, "dilation")
    padding = check_padding(padding, ("valid", "same"))
    init = check_initial(init)
    choose(algorithm, {"auto": None, **ALGORITHMS}, "algorithm of convolution")
    if features % groups:
        raise ValueError(f"features={features} cannot be split into groups={groups}; use a multiple of it")
    kernels = features // groups if tied else features

    def start(key, shape):
        _need_groups(shape, "conv", groups)
        pads = resolve(padding, shape, size, stride, dilation)
        window = (*size, shape[-1] // groups, kernels)
        fan_in = size[0] * size[1] * window[2]
        params = {"w": initial_weights(init, key, window, fan_in, size[0] * size[1] * features // groups)}
        if bias:
            params["b"] = jnp.zeros(kernels)
        return params, (), (*out_size(shape, size, stride, pads, dilation), features)

    def given(params, x):
        window = Window(stride, resolve(padding, x.shape[1:], size, stride, dilation), dilation, groups)
        every = {name: (jnp.tile(p, groups) if tied else p).astype(x.dtype) for name, p in params.items()}
        return window, every["w"], every.get("b")

    def bare(params, x, train, pool):
        """The largest of what the kernels give where a layer pools; and the bias to be added, or None."""
        window, w, b = given(params, x)
        if algorithm == "auto" and _pools_phases(pool, x.shape, w.shape, window):
            return largest(folded(direct, x, w, window, (2, 2))), b
        x = x.whole() if isinstance(x, Pending) else x
        return pool.apply((), (), convolve(x, w, window, algorithm, train), train=train)[0], b

    def summed(params, x, train):
        """With the bias, and the shape that it is to have: neighbours may still stand side by side as features."""
        window, w, b = given(params, x)
        n = neighbours(jax.default_backend(), x.shape, w.shape, window) if algorithm == "auto" else 1
        if n == 1:
            y = convolve(x, w, window, algorithm, train)
        else:
            y = folded(direct, x, w, window, (1, n))
            y = y.reshape(*y.shape[:3], -1)
        return y if b is None else y + jnp.tile(b, n), (*y.shape[:2], y.shape[2] * n, y.shape[3] // n)

    def apply(params, state, x, *, key=None, train=False):
        y, shape = summed(params, x, train)
        return y.reshape(shape), state

    def fused(after):
        rectifies = is_own(after[0], "relu", "leaky_relu")
        if len(after) > rectifies and is_own(after[rectifies], "max_pool"):
            return _pooled_first(bare, after[rectifies], after[0] if rectifies else None), 1 + rectifies
        if not bias or not is_own(after[0], "relu") or jax.default_backend() == "cpu":
            return None

        def both(params, state, x, *, key=None, train=True):
            y, shape = summed(params, x, train)
            return rectify_kept(y).reshape(shape), state

        return both, 1

    def together(params, x, train):
        w = jnp.concatenate([p["w"] for p in params], -1).astype(x.dtype)
        pads = resolve(padding, x.shape[1:], size, stride, dilation)
        y = convolve(x, w, Window(stride, pads, dilation), algorithm, train)
        if bias:
            y = y + jnp.concatenate([p["b"] for p in params]).astype(x.dtype)
        return jnp.split(y, np.cumsum([p["w"].shape[-1] for p in params])[:-1], -1)

    config = {
        "features": features,
        "size": size,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": bias,
        "algorithm": algorithm,
        "init": init,
        **({"tied": True} if tied else {}),
    }
    made = Layer(
        start,
        apply,
        "conv",
        config,
        flops=lambda shape, out: (
            (2 * size[0] * size[1] * (shape[-1] // groups) + bias) * out[0] * out[1] * features
        ),
        decay=not_negative(decay, "decay"),
        lr=not_negative(lr, "lr"),
        title=title("conv", config),
        beside=((size, stride, padding, dilation, algorithm, bias), together) if groups == 1 else None,
        fused=fused,
    )
    return own(made)


def _pooled_first(bare: Callable, pool: Layer, rectifier: Layer | None) -> Apply:
    """A convolution whose bias is added, and whose sum is rectified, only where a max-pooling found the largest.

    The same numbers, as both leave the order of a channel's pixels as it is; the gradient goes to the largest by
    the sums before rounding. On images of a quarter of the pixels, and the large ones need not be kept.
    """

    def apply(params, state, x, *, key=None, train=True):
        y, b = bare(params, x, train, pool)
        y = y if b is None else y + b
        return y if rectifier is None else rectifier.apply((), (), y, train=train)[0], state

    return apply


def _pools_phases(pool: Layer, image: Shape, kernel: Shape, window: Window) -> bool:
    """Whether the convolution gives what is pooled side by side: four outputs a window, which share no output."""
    if not pool.config["size"] == pool.config["stride"] == (2, 2):
        return False
    out = out_size(image[1:], (kernel[0], kernel[1]), window.stride, window.pads, window.dilation)
    if any(map(any, resolve(pool.config["padding"], out, (2, 2), (2, 2)))):
        return False
    return folds(jax.default_backend(), image, kernel, window, (2, 2))


def local(
    features: int,
    size,
    *,
    stride=1,
    padding: Padding = "valid",
    groups: int = 1,
    bias: bool = True,
    decay: float = 0.0,
    lr: float = 1.0,
    init: Initial = "he",
) -> Layer:
    """Convolution with kernels of its own at every place: [H', W', height · width · C / groups, features].

    Args:
        features: number of output channels.
        size: of the kernels in pixels, one number or (height, width).
        stride: between windows.
        padding: as in `conv`.
        groups: channels are split into that many groups that do not mix.
        bias: whether to add a bias to each channel of each place.
        decay: strength of the L2 penalty decay/2 · ‖w‖².
        lr: factor on the learning rate.
        init: initial weights, see `check_initial`.
    """
    features, groups = count(features, "features"), count(groups, "groups")
    size, stride = pair(size, "size"), pair(stride, "stride")
    padding = check_padding(padding, ("valid", "same"))
    init = check_initial(init)
    if features % groups:
        raise ValueError(f"features={features} cannot be split into groups={groups}; use a multiple of it")

    def start(key, shape):
        _need_groups(shape, "local", groups)
        rows, cols = out_size(shape, size, stride, resolve(padding, shape, size, stride))
        fan_in = size[0] * size[1] * shape[-1] // groups
        kernels = (rows, cols, fan_in, features)
        params = {"w": initial_weights(init, key, kernels, fan_in, size[0] * size[1] * features // groups)}
        if bias:
            params["b"] = jnp.zeros((rows, cols, features))
        return params, (), (rows, cols, features)

    def apply(params, state, x, *, key=None, train=False):
        window = Window(stride, resolve(padding, x.shape[1:], size, stride))
        rows = columns(x, size, window)
        w = params["w"].astype(x.dtype)
        if groups == 1:
            y = jnp.einsum("byxk,yxkf->byxf", rows, w)
        else:
            pixels, c = size[0] * size[1], x.shape[-1] // groups
            by_group = rows.reshape(*rows.shape[:3], pixels, groups, c)
            y = jnp.einsum(
                "byxkgc,yxkcgf->byxgf", by_group, w.reshape(*w.shape[:2], pixels, c, groups, -1)
            ).reshape(*rows.shape[:3], features)
        return y + params["b"].astype(x.dtype) if bias else y, state

    config = {"features": features, "size": size, "stride": stride, "padding": padding, "bias": bias}
    config |= {"groups": groups} if groups > 1 else {}
    return Layer(
        start,
        apply,
        "local",
        config | {"init": init},
        flops=lambda shape, out: (
            (2 * size[0] * size[1] * (shape[-1] // groups) + bias) * out[0] * out[1] * features
        ),
        decay=not_negative(decay, "decay"),
        lr=not_negative(lr, "lr"),
        title=title("local", config),
    )


def nin(features: int, size, *more: int, activation: Layer | None = None, **settings) -> Layer:
    """A convolution and then 1×1 convolutions, each followed by the activation (Lin et al. 2013).

    Args:
        features: output channels of the first convolution.
        size: of the first kernel.
        more: output channels of each 1×1 convolution that follows.
        activation: after every convolution; relu when left out.
        settings: of the first convolution: stride, padding, …; decay, lr and init go to all.
    """
    act = activation or relu()
    shared = {k: settings[k] for k in ("decay", "lr", "init", "bias") if k in settings}
    layers = [conv(features, size, **settings), act]
    for f in more:
        layers += [conv(f, 1, **shared), act]
    return serial(*layers)


def _need_groups(shape: Shape, who: str, groups: int) -> None:
    need_image(shape, who)
    if shape[-1] % groups:
        raise ShapeError(
            f"got {times(shape)}: {shape[-1]} channels cannot be split into groups={groups}; "
            "change groups, or the features of the layer before"
        )
