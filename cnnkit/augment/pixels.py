"""Changing pixels' values in place: noise, brightness, contrast, cutout, normalize."""

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from cnnkit.augment.base import Augment, Kind, Shape, Source, at_least, between


def noise(std: float) -> Augment:
    """Add Gaussian noise, fresh for every pixel of every image.

    Args:
        std: its deviation, on the images' scale of 0 to 1. Results are not clipped.

    >>> print(noise(0.1))
    noise(0.1)
    """
    at_least("noise: std", std, 0)
    kind = Kind(lambda images, drawn, background: images + drawn)

    def draw(source: Source) -> jax.Array:
        return std * normal(source.words, source.shape)

    return Augment("noise", {"std": std}, kind, draw, math.prod)


def brightness(amount: float) -> Augment:
    """Add one number to each image.

    Args:
        amount: it is uniform from −amount to amount. Results are not clipped.
    """
    at_least("brightness: amount", amount, 0)
    kind = Kind(lambda images, drawn, background: images + drawn)

    def draw(source: Source) -> jax.Array:
        return between(source.words, -amount, amount)[:, :, None, None]

    return Augment("brightness", {"amount": amount}, kind, draw, lambda shape: 1)


def contrast(amount: float) -> Augment:
    """Stretch or squeeze each image's values about their mean: mean + f · (x − mean).

    Args:
        amount: f is uniform from 1 − amount to 1 + amount; 0 to below 1. Results are not clipped.
    """
    at_least("contrast: amount", amount, 0, below=1)

    def act(images: jax.Array, drawn: jax.Array, background: float) -> jax.Array:
        mean = images.mean(axis=(1, 2, 3), keepdims=True)
        return mean + drawn * (images - mean)

    def draw(source: Source) -> jax.Array:
        return between(source.words, 1 - amount, 1 + amount)[:, :, None, None]

    return Augment("contrast", {"amount": amount}, Kind(act), draw, lambda shape: 1)


def cutout(size: int, *, background: float = 0.0) -> Augment:
    """Blank a square, its middle anywhere in the image, so that near the border less of it shows.

    Args:
        size: the square's side in pixels.
        background: what is put there.

    DeVries and Taylor 2017.
    """
    at_least("cutout: size", size, 1, whole=True)

    def shape(entering: Shape) -> Shape:
        if size > min(entering[:2]):
            raise ValueError(
                f"cutout: size {size} is larger than the image, {entering[0]}×{entering[1]}; make it smaller"
            )
        return entering

    def draw(source: Source) -> tuple[jax.Array, jax.Array]:
        """Which rows [B, H] and which columns [B, W] the square covers."""
        covered = []
        for i in (0, 1):
            start = (source.words[:, i] % source.shape[i]).astype(jnp.int32) - size // 2
            past = jnp.arange(source.shape[i], dtype=jnp.int32)[None] - start[:, None]
            covered.append((past >= 0) & (past < size))
        return covered[0], covered[1]

    def act(images: jax.Array, drawn: tuple[jax.Array, jax.Array], background: float) -> jax.Array:
        inside = drawn[0][:, :, None, None] & drawn[1][:, None, :, None]
        return jnp.where(inside, jnp.asarray(background, images.dtype), images)

    config = {"size": size, "background": background}
    return Augment(
        "cutout", config, Kind(act, exact=True), draw, lambda shape: 2, shape=shape, background=background
    )


def normalize(mean: ArrayLike, std: ArrayLike) -> Augment:
    """(x − mean) / std, in training and in evaluation.

    Args:
        mean: a number, one a channel [C], or an image [H, W, C], on the images' scale of 0 to 1.
        std: likewise, above 0. ``normalize(0.5, 0.5)`` brings 0 to 1 to −1 to 1, as in CUDA-CNN.

    >>> print(normalize(0.5, 0.5))
    normalize(0.5, 0.5)
    """
    shift, width = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    if not (np.isfinite(shift).all() and (width > 0).all()):
        raise ValueError(f"normalize: mean must be finite and std above 0, got {mean!r} and {std!r}")

    def shape(entering: Shape) -> Shape:
        for what, value in (("mean", shift), ("std", width)):
            if value.shape not in ((), (1,), entering[-1:], entering):
                raise ValueError(
                    f"normalize: {what} has shape {value.shape}, and images {entering}; give one number, "
                    f"one a channel {entering[-1:]}, or an image {entering}"
                )
        return entering

    def act(images: jax.Array, drawn: Any = None, background: float = 0.0) -> jax.Array:
        return (images - jnp.broadcast_to(shift, images.shape)) / jnp.broadcast_to(width, images.shape)

    config = {"mean": _plain(shift), "std": _plain(width)}
    return Augment("normalize", config, Kind(act), lambda source: None, at_test=act, shape=shape)


def normal(words: jax.Array, shape: Shape) -> jax.Array:
    """float32 [B, *shape] from N(0, 1), one out of each random uint32 word."""
    # 23 bits: half a step more still stays below 1, where the inverse error function is infinite.
    symmetric = ((words >> 9).astype(jnp.float32) + 0.5) / 2**22 - 1
    return (math.sqrt(2) * jax.lax.erf_inv(symmetric)).reshape(-1, *shape)


def _plain(values: np.ndarray) -> Any:
    """A number, a list, or what identifies an image."""
    if values.size <= 16:
        return [round(float(v), 6) for v in values] if values.ndim == 1 else round(float(values.item()), 6)
    return {"shape": list(values.shape), "sha256": hashlib.sha256(values.tobytes()).hexdigest()[:12]}
