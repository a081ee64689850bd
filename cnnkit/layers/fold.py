"""Convolutions over few channels, computed on folded images.

The units that multiply matrices take channels by eights and by sixty-fours, and mostly idle over an image of three or
a kernel of twenty. Folded, the pixels of a square stand side by side as channels: a window that moves by the square's
side then moves by one, over more channels, and the outputs within a square become features of one window. Kernels
get zeros where a window's pixels are not all of its squares', so the numbers are the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.layers.product import Window
from cnnkit.layers.window import Pair, Shape, out_size

_FEW = 4  # channels of a picture
_ROW = (4, 2)  # neighbours in a row that are computed together
_ALIGNED = 8  # channels that a GPU reads in one piece
_NARROW, _SLENDER = 64, 32  # features, and channels, that leave most of a GPU's matrix units idle


@dataclass(frozen=True)
class Pending:
    """An image that a layer makes for the convolution that follows, whole or already folded.

    Args:
        shape, dtype: of the whole, [B, H, W, C].
        whole: makes it.
        folded: makes, from the padding of the whole as `lax.pad` takes it and the sides of the squares,
            [B, H' / side, W' / side, side · side · C].
    """

    shape: Shape
    dtype: Any
    whole: Callable[[], jax.Array]
    folded: Callable[[list[tuple[int, int, int]], Pair], jax.Array]


def folds(backend: str, image: Shape, kernel: Shape, window: Window, phases: Pair = (1, 1)) -> bool:
    """Whether the convolution had better be computed on folded images.

    Args:
        backend: ``"cpu"`` or ``"gpu"``.
        image: [B, H, W, C].
        kernel: [h, w, C, F].
        window: how it moves.
        phases: outputs that are wanted side by side, as a pooling over (2, 2) wants them.
    """
    h, w, c, features = kernel
    # A CPU has few units to leave idle, and computes the zeros.
    if backend == "cpu" or window.groups > 1 or window.dilation != (1, 1):
        return False
    if phases == (1, 1):
        return c <= _FEW and min(window.stride) >= 2
    return c <= _SLENDER and features <= _NARROW and min(h, w) >= 3


def neighbours(backend: str, image: Shape, kernel: Shape, window: Window) -> int:
    """How many neighbours in a row of a picture's convolution are best computed together; 1 for none.

    Their features stand side by side as the neighbours do, so that nothing needs to be moved.

    Args:
        backend, image, kernel, window: as of `folds`.
    """
    h, w, c, _ = kernel
    if backend == "cpu" or c > _FEW or h * w == 1:
        return 1
    if window.groups > 1 or window.dilation != (1, 1) or window.stride != (1, 1):
        return 1
    _, cols = out_size(image[1:], (h, w), window.stride, window.pads)
    return next((n for n in _ROW if cols % n == 0), 1)


def folded(
    convolve: Callable[[jax.Array, jax.Array, Window], jax.Array],
    x: jax.Array | Pending,
    w: jax.Array,
    window: Window,
    phases: Pair = (1, 1),
) -> jax.Array:
    """x convolved with w, [B, H' / p, W' / q, p · q, F]: outputs that fill no square are left out.

    Args:
        convolve: what computes the convolution of the folded image.
        x: [B, H, W, C], or what makes it.
        w: [h, w, C, F].
        window: how it moves, with one group and no dilation.
        phases: outputs (p, q) that stand side by side.
    """
    every = out_size(x.shape[1:], (w.shape[0], w.shape[1]), window.stride, window.pads)
    out = [n // p for n, p in zip(every, phases)]
    side = window.stride[0] * phases[0], window.stride[1] * phases[1]
    last = [s * (p - 1) for s, p in zip(window.stride, phases)]  # where the last window of a square begins
    cells = [-(-(k + more) // f) for k, more, f in zip(w.shape, last, side)]
    rows, cols = (n + m - 1 for n, m in zip(out, cells))
    (top, _), (left, _) = window.pads
    edges = [
        (0, 0, 0),
        (top, rows * side[0] - x.shape[1] - top, 0),
        (left, cols * side[1] - x.shape[2] - left, 0),
        (0, 0, 0),
    ]
    if isinstance(x, Pending):
        image = x.folded(edges, side)
    else:
        image = _folded(lax.pad(x, jnp.zeros((), x.dtype), edges), side, 1)
    kernels = [
        _folded(_placed(w, (window.stride[0] * i, window.stride[1] * j), cells, side), side, 0)
        for i in range(phases[0])
        for j in range(phases[1])
    ]
    kernel = jnp.concatenate(kernels, -1)
    if jax.default_backend() != "cpu":
        more = -kernel.shape[2] % _ALIGNED
        image, kernel = _widened(image, 3, more), _widened(kernel, 2, more)
    y = convolve(image, kernel, Window((1, 1), ((0, 0), (0, 0))))
    return y.reshape(x.shape[0], *out, len(kernels), w.shape[3])


def _widened(x, axis, more):
    return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)]) if more else x


def _placed(w, at, cells, side):
    """The kernel among zeros, at a pixel of the squares that windows of all phases reach."""
    around = [(i, m * f - k - i) for i, m, f, k in zip(at, cells, side, w.shape)]
    return jnp.pad(w, (*around, (0, 0), (0, 0)))


def _folded(x, side, axis):
    """The pixels of each square side by side: the two axes from ``axis`` on divided by its sides, channels times both."""
    before, (rows, cols, c), after = x.shape[:axis], x.shape[axis : axis + 3], x.shape[axis + 3 :]
    (down, across), n = side, axis
    y = x.reshape(*before, rows // down, down, cols // across, across, c, *after)
    order = (*range(n), n, n + 2, n + 1, n + 3, *range(n + 4, y.ndim))
    return y.transpose(order).reshape(*before, rows // down, cols // across, down * across * c, *after)
