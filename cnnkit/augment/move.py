"""Moving whole pixels: crop and flip, by one gather, exact in any dtype."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cnnkit.augment.base import Augment, Kind, Shape, Source, at_least, uniform
from cnnkit.names import choose


class Move(NamedTuple):
    """Which row and which column of the image each of the result's comes from; −1 is the background.

    Attributes:
        rows: int32 [B, H'].
        columns: int32 [B, W'].
    """

    rows: jax.Array
    columns: jax.Array


def pick(images: jax.Array, move: Move, background: float = 0.0) -> jax.Array:
    """Images' rows and columns in the order that the move says.

    Args:
        images: [B, H, W, C], any dtype.
        move: for B images, or for one, which then serves all.
        background: value of rows and columns numbered −1.

    Returns:
        [B, H', W', C] of the same dtype.
    """
    count, height, width, channels = images.shape
    rows, columns = move.rows[:, :, None], move.columns[:, None, :]
    first = jnp.arange(count, dtype=jnp.int32)[:, None, None] * (height * width)
    at = first + jnp.maximum(rows, 0) * width + jnp.maximum(columns, 0)
    picked = images.reshape(-1, channels).at[at].get(mode="promise_in_bounds")
    inside = (rows >= 0) & (columns >= 0)
    return jnp.where(inside[..., None], picked, jnp.asarray(background, images.dtype))


def join(first: Move, second: Move) -> Move:
    """The one move that does what first and then second does."""
    return Move(_follow(first.rows, second.rows), _follow(first.columns, second.columns))


MOVE = Kind(pick, join, exact=True)


def crop(
    size: int | tuple[int, int], *, pad: int = 0, outside: str = "background", background: float = 0.0
) -> Augment:
    """Cut out a part at a random place in training, and the middle in evaluation.

    Args:
        size: side of the part, or (height, width).
        pad: pixels added on every side before, so that the part may reach beyond the image.
        outside: what the added pixels show: ``"background"``, ``"reflect"`` (the image mirrored about its
            outermost pixels) or ``"edge"`` (these repeated).
        background: value of added pixels for ``outside="background"``.

    >>> crop(24).out_shape((32, 32, 3))
    (24, 24, 3)
    >>> print(crop(32, pad=4, outside="reflect"))
    crop(32, pad=4, outside=reflect)
    """
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"crop: size must be one number or (height, width), got {size!r}")
    for side in sides:
        at_least("crop: size", side, 1, whole=True)
    at_least("crop: pad", pad, 0, whole=True)
    beyond = choose(outside, _OUTSIDE, "outside")
    if outside != "background" and background != 0:
        raise ValueError(
            f"crop: background={background!r} would never be seen with outside={outside!r}; leave one of them out"
        )

    def shape(entering: Shape) -> Shape:
        if sides[0] > entering[0] + 2 * pad or sides[1] > entering[1] + 2 * pad:
            raise ValueError(
                f"crop: size {sides[0]}×{sides[1]} is larger than the image, {entering[0]}×{entering[1]} with "
                f"pad={pad}; make size smaller or pad larger"
            )
        if outside == "reflect" and pad >= min(entering[:2]):
            raise ValueError(
                f"crop: pad={pad} must be less than the image's sides, {entering[0]}×{entering[1]}, to reflect it"
            )
        return (*sides, entering[2])

    def lines(start: jax.Array, side: int, length: int) -> jax.Array:
        return beyond(start[:, None] + jnp.arange(side, dtype=jnp.int32)[None] - pad, length)

    def draw(source: Source) -> Move:
        room = [source.shape[i] + 2 * pad - sides[i] + 1 for i in (0, 1)]
        starts = [(source.words[:, i] % room[i]).astype(jnp.int32) for i in (0, 1)]
        return Move(*(lines(starts[i], sides[i], source.shape[i]) for i in (0, 1)))

    def middle(images: jax.Array) -> jax.Array:
        starts = [jnp.asarray([(images.shape[1 + i] + 2 * pad - sides[i]) // 2], jnp.int32) for i in (0, 1)]
        return pick(
            images, Move(*(lines(starts[i], sides[i], images.shape[1 + i]) for i in (0, 1))), background
        )

    config = {
        "size": tuple(size) if isinstance(size, list) else size,
        "pad": pad,
        "outside": outside,
        "background": background,
    }
    seen = background if pad and outside == "background" else None
    return Augment("crop", config, MOVE, draw, lambda entering: 2, middle, shape, seen)


def flip(*, axis: str = "horizontal", rate: float = 0.5, mode: str = "random") -> Augment:
    """Mirror some of the images.

    Args:
        axis: ``"horizontal"`` swaps left and right, ``"vertical"`` top and bottom.
        rate: fraction mirrored, for ``mode="random"``.
        mode: ``"random"``, each image by its own draw; or ``"alternate"``, each example every second epoch,
            half of them in the even ones: it needs the ``index`` and ``epoch`` of the call (Jordan 2024).

    >>> print(flip())
    flip()
    """
    at_least("flip: rate", rate, 0)
    if rate > 1:
        raise ValueError(f"flip: rate is a fraction from 0 to 1, got {rate!r}")
    if mode == "alternate" and rate != 0.5:
        raise ValueError(f"flip: mode='alternate' mirrors half of the images, so rate={rate!r} does nothing")
    decide = choose(
        mode, {"random": lambda source: uniform(source.words[:, 0]) < rate, "alternate": _alternate}, "mode"
    )
    turned = choose(axis, {"vertical": (True, False), "horizontal": (False, True)}, "axis")

    def draw(source: Source) -> Move:
        mirrored = decide(source)[:, None]
        lines = [jnp.arange(length, dtype=jnp.int32)[None] for length in source.shape[:2]]
        return Move(
            *(
                jnp.where(mirrored & turns, line[:, ::-1], line)
                for line, turns in zip(lines, turned, strict=True)
            )
        )

    config = {"axis": axis, "rate": rate, "mode": mode}
    return Augment("flip", config, MOVE, draw, lambda shape: int(mode == "random"))


def _alternate(source: Source) -> jax.Array:
    if source.index is None or source.epoch is None:
        raise ValueError(
            "flip(mode='alternate') needs to know the examples and the epoch: "
            "call augment(key, images, index=…, epoch=…), or use mode='random'"
        )
    # Neighbouring examples must not share a parity with their class or place, so the index is scrambled.
    x = jnp.asarray(source.index).astype(jnp.uint32)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return (((x >> 16) + jnp.asarray(source.epoch).astype(jnp.uint32)) & 1) == 1


def _follow(first: jax.Array, second: jax.Array) -> jax.Array:
    through = jnp.take_along_axis(first, jnp.maximum(second, 0), axis=1, mode="promise_in_bounds")
    return jnp.where(second >= 0, through, -1)


def _reflected(line: jax.Array, length: int) -> jax.Array:
    return (length - 1) - jnp.abs((length - 1) - jnp.abs(line))


_OUTSIDE: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "background": lambda line, length: jnp.where((line >= 0) & (line < length), line, -1),
    "reflect": _reflected,
    "edge": lambda line, length: jnp.clip(line, 0, length - 1),
}
