"""Charts and bars as SVG text for live views: made in a millisecond, coloured by the page's theme."""

import itertools
import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

MOST_POINTS = 240
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 20, 32
DASHES = {"-": "", "--": "6 3", "-.": "7 3 2 3", ":": "2 3"}


class Line(NamedTuple):
    """A line of a chart.

    Args:
        x, y: as many numbers each.
        name: in the legend; "" leaves it out.
        color: of the line.
        style: ``"-"``, ``"--"``, ``"-."`` or ``":"``.
        steps: whether the value holds until the next point.
        faint: thin and pale, behind what matters.
    """

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    color: str = "currentColor"
    style: str = "-"
    steps: bool = False
    faint: bool = False


def chart(
    lines: Sequence[Line], x_name: str, y_name: str, width: int = 300, height: int = 170, counts: bool = False
) -> str:
    """A line chart; text and grid take the colour of the text around them.

    Args:
        lines: those without points are passed over.
        x_name, y_name: of the axes, with units.
        width, height: pixels.
        counts: whether y is a number of things: its axis begins at 0 and has whole numbers alone.
    """
    finite = [thin(line) for line in lines]
    finite = [line for line in finite if len(line.x)]
    xs = _range([0.0, *(v for line in finite for v in line.x)])
    ys = _range([v for line in finite for v in line.y] + ([0.0] if counts else []), air=0.05)
    right, bottom = width - RIGHT, height - BOTTOM
    at_x = lambda v: LEFT + (v - xs[0]) / (xs[1] - xs[0]) * (right - LEFT)
    at_y = lambda v: bottom - (v - ys[0]) / (ys[1] - ys[0]) * (bottom - TOP)
    out = [
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(y_name)} against {escape(x_name)}" fill="currentColor" '
        'font-family="sans-serif" font-size="11">'
    ]
    for value in ticks(*ys, 4, 1.0 if counts else 0.0) if finite else ():
        out.append(_rule(LEFT, at_y(value), right, at_y(value)))
        out.append(_text(LEFT - 5, at_y(value) + 4, tick_text(value), "end"))
    for value in ticks(*xs, 5) if finite else ():
        out.append(_rule(at_x(value), TOP, at_x(value), bottom))
        out.append(_text(at_x(value), bottom + 13, tick_text(value), "middle"))
    out.append(_text((LEFT + right) / 2, height - 4, x_name, "middle"))
    out.append(_text(4, 12, y_name, "start", bold=True))
    for line in finite:
        out.append(_path(line, at_x, at_y))
    out.append(_legend(finite, right))
    if not finite:
        out.append(_text((LEFT + right) / 2, (TOP + bottom) / 2, "nothing yet", "middle"))
    return "".join(out) + "</svg>"


def spark(values: Sequence[float], top: float, color: str, width: int = 120, height: int = 18) -> str:
    """A small line of recent values, the newest at the right; gaps where a value is nan.

    Args:
        values: oldest first.
        top: the value at the upper edge; the lower edge is 0.
        color: of the line.
    """
    top = top if math.isfinite(top) and top > 0 else 1.0
    step = width / max(len(values) - 1, 1)
    pieces: list[list[str]] = [[]]
    for i, value in enumerate(values):
        if math.isfinite(value):
            y = height - 1 - min(max(value / top, 0.0), 1.0) * (height - 2)
            pieces[-1].append(f"{i * step:.1f},{y:.1f}")
        elif pieces[-1]:
            pieces.append([])
    drawn = "".join(
        f'<polyline points="{" ".join(piece)}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        for piece in pieces
        if piece
    )
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f"{_rule(0, height - 0.5, width, height - 0.5)}{drawn}</svg>"
    )


def shares(parts: Sequence[tuple[float, str]], width: int = 130, height: int = 12) -> str:
    """A bar split into shares of a whole, each (fraction, colour); what they leave is empty."""
    x, drawn = 0.0, []
    for fraction, color in parts:
        wide = min(max(fraction, 0.0), 1.0) * width
        drawn.append(f'<rect x="{x:.1f}" width="{wide:.1f}" height="{height}" fill="{color}"/>')
        x += wide
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<rect width="{width}" height="{height}" fill="currentColor" fill-opacity=".13"/>{"".join(drawn)}</svg>'
    )


def thin(line: Line) -> Line:
    """The line without what is not finite, and with no more points than can be seen; the last one stays."""
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    if len(x) > MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).round().astype(int))
        x, y = x[chosen], y[chosen]
    return line._replace(x=x.tolist(), y=y.tolist())


def ticks(low: float, high: float, about: int, least: float = 0.0) -> list[float]:
    """Round numbers in a range, about so many, at least so far apart.

    >>> ticks(0.0, 1.0, 4)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(93.1, 98.7, 4)
    [94.0, 95.0, 96.0, 97.0, 98.0]
    """
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = min((unit * m for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    step = max(step, least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A number as short as it can be.

    >>> [tick_text(v) for v in (60_000, 1.2e6, 0.05, 2500)]
    ['60k', '1.2M', '0.05', '2500']
    """
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _range(values: Sequence[float], air: float = 0.0) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        half = abs(low) / 2 or 0.5
        return low - half, high + half
    return low - air * (high - low), high + air * (high - low)


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        'stroke-opacity=".18"/>'
    )


def _text(x: float, y: float, text: str, anchor: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _path(line: Line, at_x, at_y) -> str:
    points = [(at_x(x), at_y(y)) for x, y in zip(line.x, line.y)]
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5" fill="{line.color}"/>'
    if line.steps:
        points = [p for a, b in itertools.pairwise(points) for p in (a, (b[0], a[1]))] + points[-1:]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    look = 'stroke-width="1" stroke-opacity=".55"' if line.faint else 'stroke-width="1.7"'
    return (
        f'<polyline points="{path}" fill="none" stroke="{line.color}" {look} '
        f'stroke-linejoin="round" stroke-dasharray="{DASHES[line.style]}"/>'
    )


def _legend(lines: Sequence[Line], right: int) -> str:
    """Samples and names in the upper right corner, in one row."""
    out, x = [], float(right)
    for line in reversed([line for line in lines if line.name]):
        x -= 5.9 * len(line.name)
        out.append(_text(x, 12, line.name, "start"))
        x -= 22
        out.append(
            f'<line x1="{x:.1f}" y1="8" x2="{x + 18:.1f}" y2="8" stroke="{line.color}" stroke-width="2" '
            f'stroke-dasharray="{DASHES[line.style]}"/>'
        )
        x -= 7
    return "".join(out)
