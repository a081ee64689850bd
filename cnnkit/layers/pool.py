"""Pooling: maximum and mean over windows, and over the whole image."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.layers.layer import Layer
from cnnkit.layers.window import Padding, check_padding, need_image, out_size, pair, resolve

_PADDINGS = ("valid", "same", "clip")


def max_pool(size, stride=None, *, padding: Padding = "valid") -> Layer:
    """The largest element of each window, channel by channel.

    Args:
        size: of the window in pixels, one number or (height, width).
        stride: between windows; the size when left out.
        padding: ``"valid"``, ``"same"``, pixels, ((top, bottom), (left, right)), or ``"clip"`` for
            ceil(in / stride) outputs with windows cut off at the border, as CUDA-CNN has them.
    """
    return _pool("max_pool", size, stride, padding, _max)


def avg_pool(size, stride=None, *, padding: Padding = "valid") -> Layer:
    """The mean of each window over the pixels that are inside the image.

    Args:
        size: of the window in pixels, one number or (height, width).
        stride: between windows; the size when left out.
        padding: as in `max_pool`; padded pixels do not count.
    """
    return _pool("avg_pool", size, stride, padding, _mean)


def global_pool() -> Layer:
    """The mean over the image: [B, H, W, C] -> [B, C]."""

    def init(key, shape):
        need_image(shape, "global_pool")
        return (), (), shape[-1:]

    def apply(params, state, x, *, key=None, train=False):
        return x.mean((1, 2), dtype=jnp.float32).astype(x.dtype), state

    return Layer(init, apply, "global_pool", flops=lambda shape, out: shape[0] * shape[1] * shape[2])


def _pool(kind, size, stride, padding, function) -> Layer:
    size = pair(size, "size")
    stride = size if stride is None else pair(stride, "stride")
    padding = check_padding(padding, _PADDINGS)

    def init(key, shape):
        need_image(shape, kind)
        pads = resolve(padding, shape, size, stride)
        return (), (), (*out_size(shape, size, stride, pads), shape[-1])

    def apply(params, state, x, *, key=None, train=False):
        return function(x, size, stride, resolve(padding, x.shape[1:], size, stride)), state

    title = f"{kind} {size[0]}×{size[1]}" + (f" stride={stride[0]}×{stride[1]}" if stride != size else "")
    return Layer(
        init,
        apply,
        kind,
        {"size": size, "stride": stride, "padding": padding},
        flops=lambda shape, out: size[0] * size[1] * out[0] * out[1] * out[2],
        title=title,
    )


def _max(x, size, stride, pads):
    low = np.array(-np.inf, x.dtype)
    return lax.reduce_window(x, low, lax.max, (1, *size, 1), (1, *stride, 1), ((0, 0), *pads, (0, 0)))


def _mean(x, size, stride, pads):
    dims = (1, *size, 1), (1, *stride, 1), ((0, 0), *pads, (0, 0))
    total = lax.reduce_window(x.astype(jnp.float32), 0.0, lax.add, *dims)
    inside = lax.reduce_window(jnp.ones((1, *x.shape[1:3], 1)), 0.0, lax.add, *dims)
    return (total / inside).astype(x.dtype)
