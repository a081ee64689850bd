"""Convolution by three algorithms that give the same numbers: direct, matrix product, Fourier transform."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.layers.choice import Case, choose_algorithm
from cnnkit.layers.fold import folded, folds
from cnnkit.layers.loop import inside_loop
from cnnkit.layers.product import Window, depthwise, product
from cnnkit.layers.spectra import by_matrices, small
from cnnkit.layers.window import Shape, out_size
from cnnkit.layers.written import convolution, written


def direct(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """x [B, H, W, C] convolved with w [h, w, C / groups, F] by XLA's or cuDNN's own convolution.

    Pictures of few channels under wide strides are folded. On a CPU the gradients are written out, to be fast inside
    of loops; kernels of one pixel are the matrix products that they amount to, and kernels of one channel each are
    sums of products by element.
    """
    if folds(jax.default_backend(), x.shape, w.shape, window):
        return folded(direct, x, w, window)[..., 0, :]
    if jax.default_backend() != "cpu":
        return convolution(x, w, window)
    if (w.shape[:2] == (1, 1) and window.groups == 1) or depthwise(w, window):
        return product(x, w, window)
    return written(x, w, window)


def matmul(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """The same as one matrix product: every window's pixels become a row (im2col; thesis section 4.2).

    The rows are made again for the backward pass, not kept: they are as many times larger than the image as
    the kernel has pixels.
    """
    if w.shape[:2] == (1, 1):
        return product(x, w, window)
    return jax.checkpoint(product, static_argnums=2)(x, w, window)


def fft(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """The same as a product of Fourier transforms, computed in float32; it pays for large kernels.

    On a CPU small images are transformed by matrix products, which pays for small kernels as well.
    """
    if jax.default_backend() == "cpu" and small(x, w, window):
        return by_matrices(x, w, window)
    stride, pads, dilation, g = window
    wide = jnp.pad(x.astype(jnp.float32), ((0, 0), *pads, (0, 0)))
    size = wide.shape[1:3]
    sparse = lax.pad(
        w.astype(jnp.float32), jnp.float32(0), [(0, 0, d - 1) for d in dilation] + [(0, 0, 0)] * 2
    )
    freq_x = jnp.fft.rfft2(wide, size, (1, 2))
    freq_w = jnp.conj(jnp.fft.rfft2(sparse, size, (0, 1)))
    by_group = freq_x.reshape(*freq_x.shape[:3], g, -1)
    kernels = freq_w.reshape(*freq_w.shape[:3], g, -1)
    freq_y = jnp.einsum("buvgc,uvcgf->buvgf", by_group, kernels)
    y = jnp.fft.irfft2(freq_y.reshape(*freq_y.shape[:3], -1), size, (1, 2))
    # The product is circular: places whose window would run over the edge are dropped with the rest.
    rows, cols = out_size(x.shape[1:], (w.shape[0], w.shape[1]), stride, pads, dilation)
    return y[:, : rows * stride[0] : stride[0], : cols * stride[1] : stride[1]].astype(x.dtype)


ALGORITHMS = {"direct": direct, "matmul": matmul, "fft": fft}


def convolve(
    x: jax.Array, w: jax.Array, window: Window, algorithm: str = "auto", train: bool = False
) -> jax.Array:
    """x [B, H, W, C] convolved with w [h, w, C / groups, F].

    Args:
        x: images.
        w: kernels, of the same type.
        window: how they move.
        algorithm: one of `ALGORITHMS`, or ``"auto"`` for what was measured fastest near these shapes.
        train: whether gradients will be taken, which auto asks for.
    """
    if algorithm == "auto":
        algorithm = choose_algorithm(case(x.shape, w.shape, window, train))
    return ALGORITHMS[algorithm](x, w, window)


def case(image: Shape, kernel: Shape, window: Window, train: bool) -> Case:
    """What the choice of an algorithm goes by.

    Args:
        image: [B, H, W, C].
        kernel: [h, w, C / groups, F].
        window: how the kernel moves.
        train: whether gradients are taken.
    """
    backend, stride = jax.default_backend(), math.prod(window.stride)
    sizes = (*image, kernel[3], kernel[0] * kernel[1], stride, window.groups)
    return Case(backend, inside_loop(), train, *sizes)
