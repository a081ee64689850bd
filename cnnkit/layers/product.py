"""Convolution as a matrix product: every window's pixels become a row."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cnnkit.layers.window import Pads, Pair, taps


class Window(NamedTuple):
    """How a kernel moves over an image."""

    stride: Pair
    pads: Pads
    dilation: Pair = (1, 1)
    groups: int = 1


def product(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """x [B, H, W, C] convolved with w [h, w, C / groups, F] as one matrix product for each group."""
    h, width, c, features = w.shape
    g = window.groups
    if depthwise(w, window):
        pixels = taps(_padded(x, window), (h, width), window.stride, window.dilation)
        return sum((p * k for p, k in zip(pixels[1:], w.reshape(-1, g)[1:])), start=pixels[0] * w[0, 0, 0])
    rows = columns(x, (h, width), window)
    if g == 1:
        # As matrices and not as images: their gradients are then products without a transposed copy.
        y = rows.reshape(-1, h * width * c) @ w.reshape(-1, features)
        return y.reshape(*rows.shape[:3], features)
    by_group = rows.reshape(*rows.shape[:3], h * width, g, c)
    kernels = w.reshape(h * width, c, g, features // g)
    y = jnp.einsum("byxkgc,kcgf->byxgf", by_group, kernels)
    return y.reshape(*y.shape[:3], features)


def depthwise(w: jax.Array, window: Window) -> bool:
    """Whether each channel has a kernel of its own and no other: then there is no matrix in the product."""
    return 1 < window.groups == w.shape[3] and w.shape[2] == 1


def columns(x: jax.Array, size: Pair, window: Window) -> jax.Array:
    """[B, H', W', h·w·C]: the pixels of each window side by side (im2col)."""
    wide = _padded(x, window)
    if size == window.stride == (1, 1):
        return wide
    return jnp.concatenate(taps(wide, size, window.stride, window.dilation), -1)


def _padded(x, window):
    return jnp.pad(x, ((0, 0), *window.pads, (0, 0))) if any(map(any, window.pads)) else x
