"""Test-time views: an image judged by several of its mirrored and shifted copies, where the network is unsure."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Views:
    """How an image is looked at in evaluation; logits of its views are averaged by their weights.

    Args:
        mirror: also look at the mirrored image, at equal weight.
        shift: also look at the image moved by so many pixels up and left, and down and right, which together
            weigh as much as the image in its place; 0 for none.
        unsure: the part of the images that is looked at more than once: those whose largest probability is
            the smallest. 1 is all of them.

    Jordan 2024 (the six views), Hiverge 2025 (only where the network is unsure).

    Raises:
        ValueError: settings that cannot be.
    """

    mirror: bool = True
    shift: int = 1
    unsure: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or self.shift < 0:
            raise ValueError(
                f"views: shift is {self.shift!r}; it must be a whole number of pixels, 0 or more"
            )
        if not 0 <= self.unsure <= 1:
            raise ValueError(f"views: unsure is {self.unsure!r}; it is a part of the images, from 0 to 1")

    def describe(self) -> dict[str, Any]:
        """Settings as plain data, for the record."""
        return asdict(self)

    @property
    def weights(self) -> list[float]:
        """Of each view, the image as it is first; their sum is 1."""
        places = [0.5, 0.25, 0.25] if self.shift else [1.0]
        return [w / 2 for w in places for _ in (0, 1)] if self.mirror else places

    def of(self, x: jax.Array) -> Iterator[jax.Array]:
        """Each view of images [B, H, W, C], in the order of `weights`."""
        for place in self._places(x):
            yield place
            if self.mirror:
                yield place[:, :, ::-1]

    def unsure_of(self, count: int) -> int:
        """How many of so many images are looked at again."""
        return math.ceil(self.unsure * count) if len(self.weights) > 1 else 0

    def _places(self, x):
        yield x
        if self.shift:
            s, (height, width) = self.shift, x.shape[1:3]
            wide = jnp.pad(x, ((0, 0), (s, s), (s, s), (0, 0)), mode="reflect")
            yield wide[:, :height, :width]
            yield wide[:, 2 * s :, 2 * s :]
