"""Bending images: scale, rotate, translate, elastic distortion, by one bilinear resampling."""

import math
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.augment.base import Augment, Kind, Shape, Source, at_least, between, chain


class Warp(NamedTuple):
    """Where each pixel of the result comes from, one map an image.

    A result's pixel p takes the image's value at c + M·(p − c) + t + d(p), in (row, column) order, where
    c is the middle of the image.

    Attributes:
        matrix: float32 [B, 2, 3], M and, in its last column, t in pixels.
        field: float32 [B, 2, H, W], d in pixels, or None.
    """

    matrix: jax.Array
    field: jax.Array | None = None


def resample(images: jax.Array, warp: Warp, background: float = 0.0) -> jax.Array:
    """Images seen through a warp, bilinear; outside of them is the background value.

    Args:
        images: float32 [B, H, W, C].
        warp: for B images, or for one, which then serves all.
        background: value beyond the outermost pixels' centres, blended in over one pixel.

    Returns:
        float32 [B, H, W, C].
    """
    count, height, width, channels = images.shape
    row, column = _sources(warp, height, width)
    bordered = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=background)
    top = jnp.clip(jnp.floor(row), -1, height - 1)
    left = jnp.clip(jnp.floor(column), -1, width - 1)
    down = jnp.clip(row - top, 0, 1)[..., None]
    right = jnp.clip(column - left, 0, 1)[..., None]
    # Four gathers from a flat array: tent-weight matrix products took 17 times as long on a CPU.
    stride = width + 2
    first = jnp.arange(count)[:, None, None] * ((height + 2) * stride) + stride + 1
    at = first + top.astype(jnp.int32) * stride + left.astype(jnp.int32)
    flat = bordered.reshape(-1, channels)

    def tap(offset):
        return flat.at[at + offset].get(mode="promise_in_bounds")

    upper = tap(0) * (1 - right) + tap(1) * right
    lower = tap(stride) * (1 - right) + tap(stride + 1) * right
    return upper * (1 - down) + lower * down


def join(first: Warp, second: Warp) -> Warp:
    """The one warp that does what first and then second does.

    A field met by a later matrix stays on the result's grid: it has the same law there, and no field need
    be resampled.
    """
    linear, shift = first.matrix[..., :2], first.matrix[..., 2]
    matrix = jnp.stack([_times(linear, second.matrix[..., i]) for i in range(3)], axis=-1)
    matrix = matrix.at[..., 2].add(shift)
    if second.field is None:
        return Warp(matrix, first.field)
    turned = _times(linear[..., None, None], second.field)
    return Warp(matrix, turned if first.field is None else turned + first.field)


WARP = Kind(resample, join)


def scale(percent: float, *, together: bool = False, background: float = 0.0) -> Augment:
    """Enlarge or shrink by up to so many percent, about the middle, each direction by its own factor.

    Args:
        percent: factors are uniform from 1 − percent/100 to 1 + percent/100; 0 to below 100.
        together: one factor for both directions.
        background: value outside the image.

    Thesis, data augmentation; 12 for MNIST.

    >>> print(scale(12))
    scale(12)
    """
    part = at_least("scale: percent", percent, 0, below=100) / 100

    def draw(source: Source) -> Warp:
        inverse = 1 / between(source.words, 1 - part, 1 + part)
        return _matrix(inverse[:, 0], 0.0, 0.0, inverse[:, -1])

    config = {"percent": percent, "together": together, "background": background}
    words = 1 if together else 2
    return Augment("scale", config, WARP, draw, lambda shape: words, background=background)


def rotate(degrees: float, *, background: float = 0.0) -> Augment:
    """Turn about the middle, by up to so many degrees either way.

    Args:
        degrees: the angle is uniform from −degrees to degrees.
        background: value outside the image.

    Thesis, data augmentation; 12 for MNIST.

    >>> print(rotate(12))
    rotate(12)
    """
    most = math.radians(at_least("rotate: degrees", degrees, 0))

    def draw(source: Source) -> Warp:
        angle = between(source.words[:, 0], -most, most)
        return _matrix(jnp.cos(angle), jnp.sin(angle), -jnp.sin(angle), jnp.cos(angle))

    config = {"degrees": degrees, "background": background}
    return Augment("rotate", config, WARP, draw, lambda shape: 1, background=background)


def translate(pixels: float, *, background: float = 0.0) -> Augment:
    """Shift by up to so many pixels in either direction, parts of a pixel too.

    Args:
        pixels: both shifts are uniform from −pixels to pixels, independently.
        background: value outside the image.

    For whole pixels, ``crop`` with ``pad`` is faster and does not blur.
    """
    at_least("translate: pixels", pixels, 0)

    def draw(source: Source) -> Warp:
        shift = between(source.words, -pixels, pixels)
        eye = jnp.broadcast_to(jnp.eye(2), (len(shift), 2, 2))
        return Warp(jnp.concatenate([eye, shift[..., None]], axis=-1))

    config = {"pixels": pixels, "background": background}
    return Augment("translate", config, WARP, draw, lambda shape: 2, background=background)


def elastic(strength: float, *, sigma: float = 4.0, radius: int = 10, background: float = 0.0) -> Augment:
    """Bend by a smooth random displacement, independent in the two directions and for every image.

    d = strength · g ∗ u, where u is uniform from −1 to 1 at each pixel and 0 outside the image, and
    g(r) = exp(−r²/2σ²) / (2πσ), cut off to a square. Its sum is σ, not 1, as in CUDA-CNN, so that the
    deviation of d inside the image is strength / √(12π) = 0.163 · strength pixels for any σ: 0.55 at 3.4.
    At the border it is less, since half the neighbourhood is 0.

    Args:
        strength: factor on the smoothed field.
        sigma: width σ of the Gaussian in pixels.
        radius: where the Gaussian is cut off, in pixels; the square has 2·radius + 1 a side.
        background: value outside the image.

    Simard et al. 2003; thesis, data augmentation: 3.4 for MNIST.

    >>> print(elastic(3.4))
    elastic(3.4)
    """
    at_least("elastic: strength", strength, 0)
    if not (sigma > 0 and isinstance(radius, int) and radius >= 0):
        raise ValueError(
            f"elastic: sigma must be above 0 and radius a whole number of at least 0, got {sigma!r} and {radius!r}"
        )

    def draw(source: Source) -> Warp:
        height, width, _ = source.shape
        # Drawn turned by a quarter, so that each product smooths the last axis and one swap does.
        noise = bipolar(source.words, (2, width, height))
        columns = _product(noise, _smoothing(height, sigma, radius)).swapaxes(-1, -2)
        field = strength * _product(columns, _smoothing(width, sigma, radius))
        return Warp(jnp.broadcast_to(jnp.eye(2, 3), (len(field), 2, 3)), field)

    config = {"strength": strength, "sigma": sigma, "radius": radius, "background": background}
    return Augment("elastic", config, WARP, draw, _field_words, background=background)


def affine(
    *, percent: float = 0.0, degrees: float = 0.0, pixels: float = 0.0, background: float = 0.0
) -> Augment:
    """Scale, rotate and translate at random, as a chain of those that are not 0.

    >>> print(affine(percent=12, degrees=12))
    scale(12) → rotate(12)
    """
    makers = ((scale, percent), (rotate, degrees), (translate, pixels))
    return chain(*(make(value, background=background) for make, value in makers if value))


def view(
    images: jax.Array,
    *,
    scale: float | tuple[float, float] = 1.0,
    degrees: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
    background: float = 0.0,
) -> jax.Array:
    """Images scaled, then turned, then shifted by given amounts: the test-time views of the thesis.

    Args:
        images: float32 or bfloat16 [B, H, W, C].
        scale: factor, or (vertical, horizontal); above 1 enlarges.
        degrees: anticlockwise.
        shift: pixels (down, right).
        background: value outside the image.
    """
    factors = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), 2)
    return _view(
        images, factors, jnp.asarray(degrees, jnp.float32), jnp.asarray(shift, jnp.float32), background
    )


def bipolar(words: jax.Array, shape: Shape) -> jax.Array:
    """float32 [B, *shape], uniform from −1 to 1 in 256 steps, four of them out of each random word.

    Smoothing adds up some hundred of them, and random words are the dearest part of a field.
    """
    quarters = (words[:, None, :] >> jnp.arange(0, 32, 8, dtype=jnp.uint32)[None, :, None]) & 255
    steps = quarters.reshape(len(words), -1)[:, : math.prod(shape)].reshape(-1, *shape)
    return (steps.astype(jnp.float32) + 0.5) / 128 - 1


def _field_words(shape: Shape) -> int:
    return math.ceil(2 * shape[0] * shape[1] / 4)


@lru_cache
def _smoothing(size: int, sigma: float, radius: int) -> np.ndarray:
    """The symmetric band matrix [size, size] that smooths one axis, zeros beyond its ends."""
    apart = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    bell = np.exp(-(apart**2) / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma)
    return np.where(apart <= radius, bell, 0).astype(np.float32)


def _product(x: jax.Array, matrix: np.ndarray) -> jax.Array:
    flat = jnp.dot(x.reshape(-1, x.shape[-1]), matrix, precision=jax.lax.Precision.HIGHEST)
    return flat.reshape(x.shape)


def _matrix(a: jax.Array, b: jax.Array | float, c: jax.Array | float, d: jax.Array) -> Warp:
    """The warp [[a, b], [c, d]] of the (row, column) offsets, without a shift; a is [B]."""
    entries = [jnp.broadcast_to(jnp.asarray(e, jnp.float32), a.shape) for e in (a, b, 0.0, c, d, 0.0)]
    return Warp(jnp.stack(entries, axis=-1).reshape(-1, 2, 3))


def _times(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """matrix [B, 2, 2, …] times vector [B, 2, …], by hand: exact, where a product unit would round."""
    return matrix[:, :, 0] * vector[:, None, 0] + matrix[:, :, 1] * vector[:, None, 1]


def _sources(warp: Warp, height: int, width: int) -> tuple[jax.Array, jax.Array]:
    middle = (height - 1) / 2, (width - 1) / 2
    down = (jnp.arange(height, dtype=jnp.float32) - middle[0])[None, :, None]
    right = (jnp.arange(width, dtype=jnp.float32) - middle[1])[None, None, :]
    entry = warp.matrix[..., None, None]
    row, column = (
        middle[i] + entry[:, i, 0] * down + entry[:, i, 1] * right + entry[:, i, 2] for i in range(2)
    )
    if warp.field is None:
        return row, column
    return row + warp.field[:, 0], column + warp.field[:, 1]


@jax.jit
def _view(images, factors, degrees, shift, background):
    angle, one = jnp.deg2rad(degrees)[None], jnp.ones(1)
    scaled = _matrix(1 / factors[:1], 0.0, 0.0, 1 / factors[1:])
    turned = _matrix(jnp.cos(angle), jnp.sin(angle), -jnp.sin(angle), jnp.cos(angle))
    moved = Warp(_matrix(one, 0.0, 0.0, one).matrix.at[0, :, 2].set(-shift))
    warp = join(join(scaled, turned), moved)
    return resample(images.astype(jnp.float32), warp, background).astype(images.dtype)
