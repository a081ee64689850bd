"""Sizes, strides and paddings of sliding windows: what convolutions and poolings share."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax

from cnnkit.layers.layer import Shape, ShapeError

Pair = tuple[int, int]
Pads = tuple[Pair, Pair]
Padding = str | int | Sequence[Sequence[int]]


def pair(value: int | Sequence[int], what: str, least: int = 1) -> Pair:
    """One number for both directions, or (height, width), checked.

    >>> pair(3, "size")
    (3, 3)
    """
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or not all(isinstance(v, int) and v >= least for v in both):
        raise ValueError(
            f"{what}={value!r}: a whole number from {least} on is needed, or a pair (height, width) of them"
        )
    return both[0], both[1]


def check_padding(padding: Padding, names: Sequence[str]) -> str | Pads:
    """The padding as one of the names or as ((top, bottom), (left, right)), checked."""
    if isinstance(padding, str):
        if padding in names:
            return padding
    elif isinstance(padding, int):
        if padding >= 0:
            return (padding, padding), (padding, padding)
    else:
        pads = tuple(tuple(p) for p in padding)
        if len(pads) == 2 and all(len(p) == 2 and min(p) >= 0 for p in pads):
            return (pads[0][0], pads[0][1]), (pads[1][0], pads[1][1])
    known = ", ".join(repr(n) for n in names)
    raise ValueError(
        f"padding={padding!r}: give {known}, a number of pixels from 0 on, or ((top, bottom), (left, right))"
    )


def resolve(padding: str | Pads, shape: Shape, size: Pair, stride: Pair, dilation: Pair = (1, 1)) -> Pads:
    """The padding in pixels for an image of that shape; "clip" pads at the far end only."""
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return (0, 0), (0, 0)
    made = []
    for n, k, s, d in zip(shape[:2], size, stride, dilation):
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        near = 0 if padding == "clip" else total // 2
        made.append((near, total - near))
    return made[0], made[1]


def out_size(shape: Shape, size: Pair, stride: Pair, pads: Pads, dilation: Pair = (1, 1)) -> Pair:
    """Height and width of the output.

    Raises:
        ShapeError: the window does not fit into the padded image.
    """
    out = []
    for n, k, s, d, p in zip(shape[:2], size, stride, dilation, pads):
        reach = (k - 1) * d + 1
        if n + sum(p) < reach:
            raise ShapeError(
                f"got {times(shape)}: a window of {reach} does not fit into {n} + {sum(p)} pixels of padding; "
                "use a smaller size or dilation, more padding, or pool less before"
            )
        out.append((n + sum(p) - reach) // s + 1)
    return out[0], out[1]


def taps(x: jax.Array, size: Pair, stride: Pair, dilation: Pair = (1, 1)) -> list[jax.Array]:
    """The pixels at each place of the window, row by row: size[0] · size[1] arrays [B, H', W', C].

    Args:
        x: [B, H, W, C], padded already.
        size: of the window.
        stride: between windows.
        dilation: distance between the window's pixels.
    """
    rows, cols = out_size(x.shape[1:], size, stride, ((0, 0), (0, 0)), dilation)
    made = []
    for i in range(size[0]):
        for j in range(size[1]):
            top, left = i * dilation[0], j * dilation[1]
            end = (len(x), top + (rows - 1) * stride[0] + 1, left + (cols - 1) * stride[1] + 1, x.shape[-1])
            made.append(lax.slice(x, (0, top, left, 0), end, (1, *stride, 1)))
    return made


def need_image(shape: Shape, who: str) -> None:
    """Raise a ShapeError unless the shape is (H, W, C)."""
    if len(shape) != 3:
        raise ShapeError(
            f"got {times(shape)}, but {who} needs an image (height, width, channels); "
            "put it before flatten and dense layers"
        )


def times(shape: Sequence[int]) -> str:
    """A shape as it reads in errors and summaries.

    >>> times((28, 28, 1))
    '28×28×1'
    """
    return "×".join(map(str, shape)) if shape else "a single number"


def title(kind: str, config: Mapping[str, Any]) -> str:
    """How a layer with a window reads: kind, features, size, and the settings that are not the usual ones."""
    usual = {"stride": (1, 1), "padding": "valid", "dilation": (1, 1), "groups": 1, "bias": True}
    usual |= {"algorithm": "auto", **({} if "features" in config else {"stride": config["size"]})}
    words = [kind, *([str(config["features"])] if "features" in config else []), times(config["size"])]
    words += [f"{k}={_short(v)}" for k, v in config.items() if k in usual and v != usual[k]]
    return " ".join(words)


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        flat = [n for v in value for n in (v if isinstance(v, tuple) else (v,))]
        return str(flat[0]) if len(set(flat)) == 1 else str(value).replace(" ", "")
    return str(value)
