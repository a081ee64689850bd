"""What an augmentation is, where its random numbers come from, and how several become one."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Shape = tuple[int, ...]  # (H, W, C)

# What an option is when it is left out, the same wherever the option occurs.
OPTIONS: Mapping[str, Any] = {
    "background": 0.0,
    "pad": 0,
    "outside": "background",
    "axis": "horizontal",
    "rate": 0.5,
    "mode": "random",
    "together": False,
    "sigma": 4.0,
    "radius": 10,
}


@dataclass(frozen=True, eq=False)
class Source:
    """All that a draw may depend on.

    Attributes:
        words: uint32 [B, n], the random words of this augmentation alone, fresh per image.
        shape: (H, W, C) of the images that reach it.
        index: int [B], which examples these are, or None.
        epoch: int, or None.
    """

    words: jax.Array
    shape: Shape
    index: jax.Array | None = None
    epoch: jax.Array | int | None = None


@dataclass(frozen=True, eq=False)
class Kind:
    """How draws act on images: neighbours of one kind that can be joined touch the pixels only once.

    Args:
        act: ``act(images, drawn, background) -> images``.
        join: ``join(first, second) -> drawn``, which acts as first and then second would; None if nothing does.
        exact: pixels are moved or replaced, not computed with, so that any dtype will do.
    """

    act: Callable[[jax.Array, Any, float], jax.Array]
    join: Callable[[Any, Any], Any] | None = None
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Augment:
    """An augmentation: ``augment(key, images) -> images`` in training, ``test(images)`` in evaluation.

    Images are [B, H, W, C], float32 or bfloat16, 0 to 1; every image of the batch gets its own draw.

    Args:
        name: the function that made it, e.g. ``"rotate"``.
        config: its settings as plain data, for the record.
        kind: what is done with the draws.
        draw: ``draw(source) -> drawn``, arrays with a leading batch axis.
        words: how many random uint32 words one image of a shape (H, W, C) takes.
        at_test: what evaluation does in its place.
        shape: (H, W, C) that goes in -> (H, W, C) that comes out; ValueError where it cannot work.
        background: value outside the image; None where nothing outside is ever seen.
        parts: the augmentations inside a chain, or of each stage.
        stages: of stages, the epoch before which each ends; None for the last.
    """

    name: str
    config: Mapping[str, Any]
    kind: Kind
    draw: Callable[[Source], Any]
    words: Callable[[Shape], int] = lambda shape: 0
    at_test: Callable[[jax.Array], jax.Array] = lambda images: images
    shape: Callable[[Shape], Shape] = lambda shape: shape
    background: float | None = None
    parts: "tuple[Augment, ...]" = field(default=())
    stages: tuple[int | None, ...] = ()

    def __call__(
        self,
        key: jax.Array,
        images: jax.Array,
        *,
        index: jax.Array | None = None,
        epoch: jax.Array | int | None = None,
    ) -> jax.Array:
        """Augmented images; the same key gives the same result.

        Args:
            key: a JAX random key.
            images: [B, H, W, C], float32 or bfloat16.
            index: int [B], which examples these are; only ``flip(mode="alternate")`` looks at it.
            epoch: whole number from 0; it and ``stages`` look at it.

        Returns:
            images [B, *out_shape((H, W, C))] of the same dtype.
        """
        if self.stages:
            from cnnkit.augment.stages import staged

            return staged(key, images, self, index, epoch)
        return self._train(key, images, index, epoch)

    def at(self, epoch: int) -> "Augment":
        """What images go through in an epoch, from 0: that epoch's stage, or this augmentation in all of them."""
        if not self.stages:
            return self
        return next(part for part, end in zip(self.parts, self.stages) if end is None or epoch < end)

    def test(self, images: jax.Array) -> jax.Array:
        """What evaluation sees: the centre of a crop, normalized; nothing random."""
        return self._test(images)

    def out_shape(self, shape: Shape) -> Shape:
        """Shape (H, W, C) of the images that come out, where those that go in have this shape.

        Raises:
            ValueError: an augmentation cannot take such images.
        """
        for part in self.leaves:
            shape = part.shape(shape)
        return shape

    def sample(
        self,
        key: jax.Array,
        shape: tuple[int, ...],
        *,
        index: jax.Array | None = None,
        epoch: jax.Array | int | None = None,
    ) -> list[Any]:
        """The draws for a batch of this shape [B, H, W, C], one entry a part: what the key stands for."""
        if self.stages:
            raise ValueError("stages draw as the epoch's stage does: ask augment.at(epoch).sample(…)")
        return self._sample(key, tuple(shape), index, epoch)

    def describe(self) -> dict[str, Any]:
        """Name, settings and parts as plain data, for the record; ``rebuild`` reads it."""
        out = {"name": self.name, **{k: _plain(v) for k, v in self.config.items()}}
        if self.parts:
            out["parts"] = [part.describe() for part in self.parts]
        return out

    def __str__(self) -> str:
        if self.name == "chain":
            return " → ".join(map(str, self.parts)) or "chain()"
        if self.stages:
            pairs = zip(self.parts, self.config["epochs"])
            return f"stages({', '.join(str(part) if n is None else f'({part}, {n})' for part, n in pairs)})"
        options = {k: v for k, v in self.config.items() if k in OPTIONS}
        shown = [_brief(v) for k, v in self.config.items() if k not in OPTIONS]
        shown += [f"{k}={_brief(v)}" for k, v in options.items() if v != OPTIONS[k]]
        return f"{self.name}({', '.join(shown)})"

    @property
    def leaves(self) -> "tuple[Augment, ...]":
        """The simple augmentations that this one runs through, in order."""
        return self.parts if self.name == "chain" else (self,)

    @cached_property
    def _train(self) -> Callable[..., jax.Array]:
        return jax.jit(self._run, inline=True)

    @cached_property
    def _test(self) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(self._evaluate, inline=True)

    @cached_property
    def _sample(self) -> Callable[..., list[Any]]:
        return jax.jit(self._draw, static_argnums=1, inline=True)

    def _draw(self, key, shape, index, epoch):
        steps = list(self._steps(shape[1:]))
        counts = [part.words(entering) for part, entering in steps]
        # One call for the whole chain: on a GPU every call is a handful of kernels.
        words = jax.random.bits(key, (shape[0], sum(counts)), jnp.uint32)
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return [
            part.draw(Source(words[:, end - count : end], entering, index, epoch))
            for (part, entering), count, end in zip(steps, counts, ends, strict=True)
        ]

    def _steps(self, shape: Shape) -> "Iterator[tuple[Augment, Shape]]":
        for part in self.leaves:
            yield part, shape
            shape = part.shape(shape)

    def _groups(self) -> "list[list[int]]":
        groups: list[list[int]] = []
        for i, part in enumerate(self.leaves):
            if groups and _joins([self.leaves[j] for j in groups[-1]], part):
                groups[-1].append(i)
            else:
                groups.append([i])
        return groups

    def _run(self, key, images, index, epoch):
        self._check(images)
        drawn = self._draw(key, images.shape, index, epoch)
        # bfloat16 has too few digits to compute in; it is rounded once, at the end.
        x = images if self._exact else images.astype(jnp.float32)
        for group in self._groups():
            parts = [self.leaves[i] for i in group]
            kind, joined = parts[0].kind, drawn[group[0]]
            for i in group[1:]:
                joined = kind.join(joined, drawn[i])  # type: ignore[misc]  # groups are made by it
            x = kind.act(x, joined, _background(parts))
        return x.astype(images.dtype)

    def _evaluate(self, images):
        self._check(images)
        x = images if self._exact else images.astype(jnp.float32)
        for part in self.leaves:
            x = part.at_test(x)
        return x.astype(images.dtype)

    @property
    def _exact(self) -> bool:
        return all(part.kind.exact for part in self.leaves)

    def _check(self, images: jax.Array) -> None:
        if images.ndim != 4:
            raise ValueError(f"{self.name} takes images [B, H, W, C], got shape {images.shape}")
        self.out_shape(images.shape[1:])
        if not self._exact and not jnp.issubdtype(images.dtype, jnp.floating):
            raise ValueError(
                f"{self.name} takes floating images from 0 to 1, got {images.dtype}: divide by 255"
            )


def chain(*augments: Augment) -> Augment:
    """Augmentations one after another, as one.

    Neighbours that resample (scale, rotate, translate, elastic) become a single bilinear resampling: less
    blur, and the pixels are read once. Neighbours that move whole pixels (crop, flip) become one move.

    >>> from cnnkit.augment import elastic, rotate
    >>> print(chain(rotate(12), elastic(3.4)))
    rotate(12) → elastic(3.4)
    """
    for i, augment in enumerate(augments):
        if not isinstance(augment, Augment):
            hint = "; call it, e.g. flip()" if callable(augment) else ""
            raise TypeError(f"chain: part {i} is {augment!r}, not an Augment{hint}")
        if augment.stages:
            raise TypeError(f"chain: part {i} has stages; make stages of chains, not a chain of stages")
    parts = tuple(leaf for augment in augments for leaf in augment.leaves)
    return Augment(
        "chain", {}, Kind(lambda images, drawn, background: images), lambda source: None, parts=parts
    )


def uniform(words: jax.Array) -> jax.Array:
    """Numbers from 0 to below 1 out of random uint32 words, with 24 bits each."""
    return (words >> 8).astype(jnp.float32) * (1 / 2**24)


def between(words: jax.Array, low: float, high: float) -> jax.Array:
    """Numbers from low to below high out of random uint32 words."""
    return low + (high - low) * uniform(words)


def at_least(what: str, value: Any, low: float, *, below: float = math.inf, whole: bool = False) -> Any:
    """The value, if it is a number and low <= value < below; else a ValueError that says so."""
    kind: Any = Integral if whole else Real
    if not (isinstance(value, kind) and low <= value < below):
        number = "whole number" if whole else "number"
        limit = "" if below == math.inf else f" and below {below:g}"
        raise ValueError(f"{what} must be a {number} of at least {low:g}{limit}, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def _brief(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _joins(group: list[Augment], part: Augment) -> bool:
    backgrounds = {a.background for a in [*group, part]} - {None}
    return part.kind.join is not None and part.kind is group[0].kind and len(backgrounds) <= 1


def _background(group: list[Augment]) -> float:
    return next((a.background for a in group if a.background is not None), 0.0)
