"""Which algorithm a convolution takes when it is left to choose: the fastest one measured nearest by."""

import json
import math
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Case(NamedTuple):
    """What the time of a convolution depends on.

    Args:
        backend: ``"cpu"`` or ``"gpu"``.
        loop: whether it runs inside a compiled loop.
        gradient: whether its gradients are taken too.
        batch, height, width, channels, features: of the images and of the output.
        kernel: pixels of the kernel.
        stride: pixels between windows, both directions multiplied.
        groups: that channels are split into.
    """

    backend: str
    loop: bool
    gradient: bool
    batch: int
    height: int
    width: int
    channels: int
    features: int
    kernel: int
    stride: int
    groups: int


def choose_algorithm(case: Case) -> str:
    """The fastest algorithm at the measured case nearest to this one.

    On backends not measured: "matmul" for kernels of one pixel, "direct" for others.

    Nearest in the logarithms of the sizes, of which the kernel's and the groups' weigh most: they decide
    whether a convolution is one matrix product.
    """
    rows = _measured(case.backend, case.loop, case.gradient)
    if not rows:
        return "matmul" if case.kernel == 1 else "direct"
    nearest = min(rows, key=lambda row: _distance(row[0], case))
    return min(nearest[1], key=nearest[1].__getitem__)


def read_table() -> list[dict[str, Any]]:
    """The measured rows: a case's fields, and milliseconds by algorithm under "ms"."""
    return json.loads(files("cnnkit.layers").joinpath("conv_table.json").read_text("utf-8"))["rows"]


@cache
def _measured(backend: str, loop: bool, gradient: bool) -> list[tuple[Case, dict[str, float]]]:
    rows = [(Case(**{k: row[k] for k in Case._fields}), row["ms"]) for row in read_table()]
    return [row for row in rows if row[0][:3] == (backend, loop, gradient)]


def _distance(a: Case, b: Case) -> float:
    sizes = zip(a[3:], b[3:], (1, 1, 1, 1, 1, 4, 2, 4))
    return sum(weight * math.log2(n / m) ** 2 for n, m, weight in sizes)
