"""A contact sheet: what augmentations make of a few images."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.augment import Augment
from cnnkit.data import Dataset
from cnnkit.notebook import style
from cnnkit.notebook.style import Picture

GAP = 2  # pixels
TITLE_INCHES = 0.24


def contact_sheet(
    data: Dataset | Any,
    augments: Augment | Sequence[Augment],
    *,
    key: int | jax.Array = 0,
    count: int = 10,
    draws: int = 2,
    width: float = 7.0,
) -> Picture:
    """The originals in the first row, and under them what each augmentation makes of them.

    Args:
        data: a Dataset, of which the first training image of each class is shown, or images
            [N, H, W, C], uint8 or floating from 0 to 1, of which the first are.
        augments: one augmentation or several; results of other sizes are shown to scale.
        key: a random key, or a seed.
        count: how many images.
        draws: how many times each is augmented, one below the other.
        width: of the figure, in inches.

    Raises:
        ValueError: there are no images, or they are neither grey nor of three colours.
    """
    if isinstance(augments, Augment):
        augments = [augments]
    images, index = _images(data, count)
    key = jax.random.key(key) if isinstance(key, int) else key
    blocks = {"as they are": [np.asarray(images)]}
    for i, augment in enumerate(augments):
        keys = jax.random.split(jax.random.fold_in(key, i), draws)
        made = [np.asarray(augment(k, images, index=index, epoch=n)) for n, k in enumerate(keys)]
        blocks[_title(i, augment, blocks)] = _shown(augment, made)
    side = [max(m.shape[i] for block in blocks.values() for m in block) for i in (1, 2)]
    return _sheet({title: _grid(block, side) for title, block in blocks.items()}, width)


def _images(data: Dataset | Any, count: int) -> tuple[jax.Array, jax.Array]:
    if isinstance(data, Dataset):
        _, index = np.unique(data.train.labels, return_index=True)
        index, images = index[:count], data.train.images
    else:
        images = np.asarray(data)
        index = np.arange(min(count, len(images)))
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or not len(index):
        raise ValueError(
            f"a contact sheet takes images [N, H, W, 1] or [N, H, W, 3], N of at least 1, got shape {images.shape}"
        )
    chosen = images[index]
    if chosen.dtype == np.uint8:
        chosen = chosen / np.float32(255)
    return jnp.asarray(chosen, jnp.float32), jnp.asarray(index)


def _title(i: int, augment: Augment, taken: dict[str, Any]) -> str:
    return str(augment) if str(augment) not in taken else f"{augment}, number {i + 1}"


def _shown(augment: Augment, made: list[np.ndarray]) -> list[np.ndarray]:
    """Values from 0 to 1: clipped, or stretched to that where they were normalized."""
    if any(part.name == "normalize" for part in _all(augment)):
        low, high = min(m.min() for m in made), max(m.max() for m in made)
        made = [(m - low) / max(high - low, 1e-6) for m in made]
    return [m.clip(0, 1) for m in made]


def _all(augment: Augment) -> list[Augment]:
    """The simple augmentations of all stages."""
    stages = augment.parts if augment.stages else (augment,)
    return [leaf for stage in stages for leaf in stage.leaves]


def _grid(block: list[np.ndarray], side: list[int]) -> np.ndarray:
    """Batches [B, H, W, C] as rows of a white grid [rows, columns, 3], each image in the middle of its cell."""
    height, width = side[0] + GAP, side[1] + GAP
    grid = np.ones((len(block) * height - GAP, len(block[0]) * width - GAP, 3), np.float32)
    for row, batch in enumerate(block):
        top = row * height + (side[0] - batch.shape[1]) // 2
        for column, image in enumerate(batch):
            left = column * width + (side[1] - batch.shape[2]) // 2
            grid[top : top + image.shape[0], left : left + image.shape[1]] = image
    return grid


def _sheet(grids: dict[str, np.ndarray], width: float) -> Picture:
    """All grids in one picture, a title above each: axes of their own would each get another scale."""
    columns = next(iter(grids.values())).shape[1]
    strip = math.ceil(TITLE_INCHES * columns / width)
    blank = np.ones((strip, columns, 3), np.float32)
    picture = np.concatenate([part for grid in grids.values() for part in (blank, grid)])
    figure, (ax,) = style.figure(width, width * len(picture) / columns)
    style.image_axes(ax).imshow(picture, interpolation="nearest")
    top = 0
    for title, grid in grids.items():
        ax.text(0, top + 0.85 * strip, title, fontsize=8, color=style.TEXT, va="baseline")
        top += strip + len(grid)
    return figure
