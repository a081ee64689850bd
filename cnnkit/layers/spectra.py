"""Convolution as a product of spectra, with Fourier transforms that are products with matrices: for small images."""

from functools import cache
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.layers.product import Window
from cnnkit.layers.window import out_size

_LONGEST = 64  # pixels along an axis, beyond which a fast transform is faster, from measurements
_AT_ONCE, _WORTH = 400, 0.15  # when one matrix transforms along both axes, from measurements


class Forms(NamedTuple):
    """Matrices with which y = output · ((image · x) ∘ (kernel · w)) is a convolution; see `forms`.

    Args:
        image: [points, pixels].
        kernel: [points, pixels of the kernel].
        output: [outputs, points].
    """

    image: np.ndarray
    kernel: np.ndarray
    output: np.ndarray


class Axis(NamedTuple):
    """Where pixels lie along an axis.

    Args:
        period: of a circular convolution that is long enough for the window's.
        image, kernel, output: places of their pixels.
    """

    period: int
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    output: tuple[int, ...]


def by_matrices(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """x [B, H, W, C] convolved with w [h, w, C / groups, F], in float32.

    Three real products for each pair of frequencies, a matrix product for each: fewer operations than kernels have
    pixels, and all of them matrix products.
    """
    (batch, height, width, c), (h, k, _, features), g = x.shape, w.shape, window.groups
    axes = _axes(x, w, window)
    together = at_once(height * width, c, features, g)
    image, kernel, output = zip(*([forms(*axes)] if together else map(forms, axes)))
    points = [
        _through(image, x.astype(jnp.float32).transpose(1, 2, 0, 3).reshape(height, width, -1)),
        _through(kernel, w.astype(jnp.float32).reshape(h, k, -1)),
    ]
    if g == 1:
        y = _times(points[0].reshape(-1, batch, c), points[1].reshape(-1, c, features))
    else:
        by_group = [points[0].reshape(-1, batch, g, c // g), points[1].reshape(-1, c // g, g, features // g)]
        y = jnp.einsum("pbgc,pcgf->pbgf", *by_group, precision=lax.Precision.HIGHEST)
    y = _through(output, y.reshape(*(matrix.shape[1] for matrix in output), -1))
    y = y.reshape(*(len(axis.output) for axis in axes), batch, features)
    return y.transpose(2, 0, 1, 3).astype(x.dtype)


def small(x: jax.Array, w: jax.Array, window: Window) -> bool:
    """Whether `by_matrices` is for such images."""
    return max(axis.period for axis in _axes(x, w, window)) <= _LONGEST


def _times(a: jax.Array | np.ndarray, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _axes(x: jax.Array, w: jax.Array, window: Window) -> tuple[Axis, Axis]:
    stride, pads, dilation, _ = window
    counts = out_size(x.shape[1:], (w.shape[0], w.shape[1]), stride, pads, dilation)
    made = []
    for n, k, m, step, (near, _), apart in zip(x.shape[1:3], w.shape[:2], counts, stride, pads, dilation):
        last = (m - 1) * step + (k - 1) * apart - near
        # What lies outside of the image must not meet it from the other side.
        period = max(n + near, last + 1)
        output = tuple(i * step - near for i in range(m))
        made.append(Axis(period, tuple(range(n)), tuple(i * apart for i in range(k)), output))
    return made[0], made[1]


def at_once(pixels: int, channels: int, features: int, groups: int) -> bool:
    """Whether one matrix transforms along both axes: more work than axis by axis, for a third fewer points."""
    return pixels <= _AT_ONCE and channels * features / groups >= _WORTH * pixels * (channels + features)


def _through(matrices: tuple[np.ndarray, ...], x: jax.Array) -> jax.Array:
    """x [.., .., N] along its first axes by their matrices, or by one for all of them: [.., N]."""
    if len(matrices) == 1:
        return _times(matrices[0], x.reshape(matrices[0].shape[1], -1))
    down, across = matrices
    x = _times(jnp.broadcast_to(across, (len(x), *across.shape)), x)
    return _times(down, x.reshape(len(x), -1)).reshape(len(down) * len(across), -1)


@cache
def forms(*axes: Axis) -> Forms:
    """The matrices of a circular convolution along one axis or several together.

    Frequencies that are their own mirror images have real values. Of the others every second one is needed, a
    complex number each, whose product takes three real ones: with a = x·w, b = x'·w' and c = (x + x')·(w + w') of real
    and imaginary parts x and x', w and w', it is a - b and c - a - b. (Gauss)

    Example:
        >>> places = (0, 1, 2)
        >>> image, kernel, output = forms(Axis(3, places, places, places))
        >>> (output @ ((image @ [1.0, 2.0, 3.0]) * (kernel @ [0.0, 1.0, 0.0]))).round(3)
        array([2., 3., 1.])
    """
    periods = np.array([axis.period for axis in axes])
    mirror = lambda u: tuple((-np.array(u)) % periods)
    every = list(product(*map(range, periods)))
    alone = [u for u in every if u == mirror(u)]
    pairs = [u for u in every if u < mirror(u)]

    def waves(frequencies, places):
        phase = np.array(frequencies).reshape(-1, len(axes)) / periods @ np.array(list(product(*places))).T
        return np.exp(-2j * np.pi * phase)

    def values(places, turned):
        both = np.conj(waves(pairs, places)) if turned else waves(pairs, places)
        return np.concatenate([waves(alone, places).real, both.real, both.imag, both.real + both.imag])

    back = [axis.output for axis in axes]
    cos, sin = 2 * waves(pairs, back).real, -2 * waves(pairs, back).imag
    # Of a value p + ip' and its mirror image's, 2 (p cos - p' sin) is left; p and p' are the sums above.
    output = np.concatenate([waves(alone, back).real, cos + sin, sin - cos, -sin]) / periods.prod()
    made = (
        values([axis.image for axis in axes], False),
        values([axis.kernel for axis in axes], True),
        output.T,
    )
    return Forms(*(np.ascontiguousarray(matrix, np.float32) for matrix in made))
