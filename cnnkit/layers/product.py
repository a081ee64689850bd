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
    rows = columns(x, (h, width), window)
    g = window.groups
    if g == 1:
        # As matrices and not as images: their gradients are then products without a transposed copy.
        y = rows.reshape(-1, h * width * c) @ w.reshape(-1, features)
        return y.reshape(*rows.shape[:3], features)
    by_group = rows.reshape(*rows.shape[:3], h * width, g, c)
    kernels = w.reshape(h * width, c, g, features // g)
    y = jnp.einsum("byxkgc,kcgf->byxgf", by_group, kernels)
    return y.reshape(*y.shape[:3], features)


def columns(x: jax.Array, size: Pair, window: Window) -> jax.Array:
    """[B, H', W', h·w·C]: the pixels of each window side by side (im2col)."""
    wide = jnp.pad(x, ((0, 0), *window.pads, (0, 0))) if any(map(any, window.pads)) else x
    if size == window.stride == (1, 1):
        return wide
    return jnp.concatenate(taps(wide, size, window.stride, window.dilation), -1)
