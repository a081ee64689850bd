"""Convolution with its gradients written out, for CPUs.

XLA brings the convolutions that it derives into its fast form only outside of loops: inside, they take many times
as long. Here both gradients are of that form from the beginning.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.layers.product import Window, product
from cnnkit.layers.window import Pads, Pair, Shape

_FEWER, _WIDEST = 1.5, 11  # when the gradient is scattered, from measurements
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolution(x: jax.Array, w: jax.Array, window: Window, spread: Pair = (1, 1)) -> jax.Array:
    """x [B, H, W, C], its pixels spread so far apart, convolved with w by the compiler's own convolution."""
    return lax.conv_general_dilated(
        x,
        w,
        window.stride,
        window.pads,
        lhs_dilation=spread,
        rhs_dilation=window.dilation,
        dimension_numbers=_LAYOUT,
        feature_group_count=window.groups,
    )


def written(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """`convolution` with gradients that are fast on a CPU, in loops as well; forward-mode is not there."""
    return _written(*same_axes(x, w), window)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _written(x, w, window: Window):
    # The convolution of one channel is slow there, and its rows are as few as they can be.
    return product(x, w, window) if x.shape[-1] == 1 else convolution(x, w, window)


def _written_forward(x, w, window):
    return _written(x, w, window), (x, w)


def _written_backward(window, saved, dy):
    x, w = saved
    return _image_gradient(dy, w, window, x.shape), _kernel_gradient(x, dy, window, w.shape)


_written.defvjp(_written_forward, _written_backward)


def _image_gradient(dy, w, window: Window, shape: Shape):
    pixels, places = math.prod(shape[1:3]), math.prod(dy.shape[1:3])
    # As a convolution the gradient takes a product for every pixel of the image, scattered for every window.
    if window.groups == 1 and pixels > _FEWER * places and w.shape[1] <= _WIDEST:
        return _scattered(dy, w, window, shape)
    return _turned(dy, w, window, shape)


def _turned(dy, w, window: Window, shape: Shape):
    """dy spread by the stride, convolved with the kernel turned about and its channels exchanged."""
    h, width, c, features = w.shape
    g = window.groups
    turned = w[::-1, ::-1].reshape(h, width, c, g, features // g)
    turned = turned.transpose(0, 1, 4, 3, 2).reshape(h, width, features // g, g * c)
    pads = []
    for n, m, k, s, d, (near, _) in zip(
        shape[1:3], dy.shape[1:3], w.shape[:2], window.stride, window.dilation, window.pads
    ):
        reach = (k - 1) * d
        pads.append((reach - near, n + near - (m - 1) * s - 1))
    dy, positive = _cut(dy, pads, window.stride)
    return convolution(dy, turned, Window((1, 1), positive, window.dilation, g), window.stride)


def _scattered(dy, w, window: Window, shape: Shape):
    """Matrix products give every window's pixels their gradients, which are then added up (col2im)."""
    h, width, c, features = w.shape
    (down, across), ((top, bottom), (left, right)), (far, wide), _ = window
    rows, cols = dy.shape[1:3]
    height, breadth = shape[1] + top + bottom, shape[2] + left + right
    flat, zero = dy.reshape(-1, features), jnp.zeros((), dy.dtype)

    def add_row(i, total):
        taps = (flat @ w[i].reshape(-1, features).T).reshape(len(dy), rows, cols, width, c)
        row = sum(
            lax.pad(taps[:, :, :, j], zero, _margins((0, 0), (j * wide, breadth), across, cols))
            for j in range(width)
        )
        start, span = i * far, (rows - 1) * down + 1
        here = lax.dynamic_slice_in_dim(total, start, span, 1)
        row = lax.pad(row, zero, [(0, 0, 0), (0, 0, down - 1), (0, 0, 0), (0, 0, 0)])
        return lax.dynamic_update_slice_in_dim(total, here + row, start, 1)

    # A loop over the kernel's rows: its result stands in memory, where the sum of all taps would be fused into
    # what reads it and made anew at each reading.
    total = jnp.zeros((len(dy), height, breadth, c), dy.dtype)
    total = lax.fori_loop(0, h, add_row, *same_axes(total, dy)[:1])
    return total[:, top : top + shape[1], left : left + shape[2]]


def _margins(rows: Pair, cols: Pair, step: int, n: int):
    """lax.pad's settings to put n columns, step apart, at a place among others: (place, columns in all)."""
    place, total = cols
    return [(0, 0, 0), (0, 0, 0), (place, total - place - (n - 1) * step - 1, step - 1), (0, 0, 0)]


def _kernel_gradient(x, dy, window: Window, shape: Shape):
    """The image convolved with dy as the kernel: channels play the batch, and the batch the channels."""
    c, g = shape[2], window.groups
    pads = []
    for n, m, k, s, d, (near, _) in zip(
        x.shape[1:3], dy.shape[1:3], shape[:2], window.stride, window.dilation, window.pads
    ):
        # Pixels past the last window are cut off, or the result would have more than k places.
        pads.append((near, (k - 1) * d + (m - 1) * s + 1 - n - near))
    x, positive = _cut(x, pads)
    image = x.reshape(*x.shape[:3], g, c).transpose(4, 1, 2, 3, 0).reshape(c, *x.shape[1:3], -1)
    kernel = dy.transpose(1, 2, 0, 3)
    dw = convolution(image, kernel, Window(window.dilation, positive, window.stride, g))
    return dw.transpose(1, 2, 0, 3)


def _cut(x, pads, spread: Pair = (1, 1)) -> tuple[jax.Array, Pads]:
    """Negative padding carried out as a slice, as XLA's CPU convolution has been wrong with it (jax 0.10)."""
    inside, rest = [slice(None)], []
    for n, (near, far), s in zip(x.shape[1:3], pads, spread):
        a, b = max(0, -(near // s)), max(0, -(far // s))
        inside.append(slice(a, n - b))
        rest.append((near + a * s, far + b * s))
    return x[tuple(inside)], (rest[0], rest[1])


def same_axes(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays, all varying over the same mesh axes: inside shard_map a written-out gradient needs it."""
    varying = [_varying(a) for a in arrays]
    everywhere = frozenset[str]().union(*varying)
    return [
        lax.pcast(a, tuple(everywhere - v), to="varying") if everywhere - v else a
        for a, v in zip(arrays, varying)
    ]


def _varying(x: jax.Array) -> frozenset[str]:
    kind = jax.typeof(x)
    return getattr(getattr(kind, "manual_axis_type", kind), "varying", frozenset())
