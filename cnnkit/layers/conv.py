"""Convolutional layers: shared weights, 1×1 stacks (NIN), and a kernel of its own at every place."""

import jax.numpy as jnp

from cnnkit.layers.activate import relu
from cnnkit.layers.convolve import ALGORITHMS, convolve
from cnnkit.layers.dense import count, not_negative
from cnnkit.layers.initial import Initial, check_initial, initial_weights
from cnnkit.layers.layer import Layer, ShapeError, serial
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

    def start(key, shape):
        need_image(shape, "conv")
        if shape[-1] % groups:
            raise ShapeError(
                f"got {times(shape)}: {shape[-1]} channels cannot be split into groups={groups}; "
                "change groups, or the features of the layer before"
            )
        pads = resolve(padding, shape, size, stride, dilation)
        window = (*size, shape[-1] // groups, features)
        fan_in = size[0] * size[1] * window[2]
        params = {"w": initial_weights(init, key, window, fan_in, size[0] * size[1] * features // groups)}
        if bias:
            params["b"] = jnp.zeros(features)
        return params, (), (*out_size(shape, size, stride, pads, dilation), features)

    def apply(params, state, x, *, key=None, train=False):
        pads = resolve(padding, x.shape[1:], size, stride, dilation)
        w = params["w"].astype(x.dtype)
        y = convolve(x, w, Window(stride, pads, dilation, groups), algorithm, train)
        return y + params["b"].astype(x.dtype) if bias else y, state

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
    }
    return Layer(
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
    )


def local(
    features: int,
    size,
    *,
    stride=1,
    padding: Padding = "valid",
    bias: bool = True,
    decay: float = 0.0,
    lr: float = 1.0,
    init: Initial = "he",
) -> Layer:
    """Convolution with a kernel of its own at every place; weights are [H', W', height · width · C, features].

    Args:
        features: number of output channels.
        size: of the kernels in pixels, one number or (height, width).
        stride: between windows.
        padding: as in `conv`.
        bias: whether to add a bias to each channel of each place.
        decay: strength of the L2 penalty decay/2 · ‖w‖².
        lr: factor on the learning rate.
        init: initial weights, see `check_initial`.
    """
    features = count(features, "features")
    size, stride = pair(size, "size"), pair(stride, "stride")
    padding = check_padding(padding, ("valid", "same"))
    init = check_initial(init)

    def start(key, shape):
        need_image(shape, "local")
        rows, cols = out_size(shape, size, stride, resolve(padding, shape, size, stride))
        fan_in = size[0] * size[1] * shape[-1]
        kernels = (rows, cols, fan_in, features)
        params = {"w": initial_weights(init, key, kernels, fan_in, size[0] * size[1] * features)}
        if bias:
            params["b"] = jnp.zeros((rows, cols, features))
        return params, (), (rows, cols, features)

    def apply(params, state, x, *, key=None, train=False):
        window = Window(stride, resolve(padding, x.shape[1:], size, stride))
        y = jnp.einsum("byxk,yxkf->byxf", columns(x, size, window), params["w"].astype(x.dtype))
        return y + params["b"].astype(x.dtype) if bias else y, state

    config = {"features": features, "size": size, "stride": stride, "padding": padding, "bias": bias}
    return Layer(
        start,
        apply,
        "local",
        config | {"init": init},
        flops=lambda shape, out: (2 * size[0] * size[1] * shape[-1] + bias) * out[0] * out[1] * features,
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
