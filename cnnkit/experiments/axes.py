"""Logarithmic axes that show whole decades and plain numbers."""

import math
from collections.abc import Sequence
from typing import Any


def decades(ax: Any, values: Sequence[float], axis: str = "x") -> None:
    """Make an axis logarithmic, over the decades that hold all values.

    Args:
        ax: matplotlib axes.
        values: positive numbers.
        axis: ``"x"`` or ``"y"``.
    """
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    limits = (10.0**low, 10.0 ** max(high, low + 1))
    if axis == "x":
        ax.set_xscale("log")
        ax.set_xlim(*limits)
        line = ax.xaxis
    else:
        ax.set_yscale("log")
        ax.set_ylim(*limits)
        line = ax.yaxis
    line.set_major_formatter("{x:g}")
    line.set_minor_formatter("")
