"""How every figure looks: Okabe–Ito colours with line styles, Figure objects that show and save themselves."""

import copy
import io
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from PIL import Image

from cnnkit.names import choose

PALETTE = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "black": "#000000",
}
"""Okabe and Ito 2008, told apart with any colour vision; their yellow is left out: too pale on white."""

COLORS = tuple(PALETTE.values())
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
"""Line styles, so that no figure needs its colours to be read."""

PART_COLORS = {"train": PALETTE["vermilion"], "held_out": PALETTE["green"], "test": PALETTE["blue"]}
PART_LINES = {"train": "--", "held_out": "-.", "test": "-"}
PART_NAMES = {"train": "training", "held_out": "held out", "test": "test"}

SHOWN_DPI, CSS_DPI = 144, 96
TEXT, GRID = "#333333", "#dddddd"

SMALLEST = 0.65  # of the text's size; 8 points become 5
WIDTHS = {"column": 3.35, "page": 6.9}
FORMATS = {".svg": "svg", ".png": "png", ".pdf": "pdf"}


class Picture(Figure):
    """A matplotlib figure outside pyplot's state, which a notebook shows when it is a cell's value."""

    colors: int | None = None
    """Of the palette that a notebook's PNG gets, for the notebook's size; None keeps every colour."""

    def png(self, dpi: float = SHOWN_DPI, colors: int | None = None) -> bytes:
        """The figure as PNG; with a palette of so many colors, 64 at least, line plots take a quarter of the bytes."""
        into = io.BytesIO()
        FigureCanvasAgg(self)
        self.savefig(into, format="png", dpi=dpi, facecolor="white")
        if colors is None:
            return into.getvalue()
        image, into = Image.open(into).convert("RGB"), io.BytesIO()
        _few_colors(image, colors).save(into, format="png", optimize=True)
        return into.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        width, height = (round(inches * CSS_DPI) for inches in self.get_size_inches())
        data = {"text/plain": repr(self), "image/png": self.png(colors=self.colors)}
        return data, {"image/png": {"width": width, "height": height}}


def _few_colors(image: Image.Image, count: int) -> Image.Image:
    """The same with a palette: greys, this module's colours and paler ones, and what else the image has most of.

    A palette made of the image alone gives thin lines, of few pixels, the colours of others.
    """
    known = [np.full(3, grey) for grey in np.linspace(0, 255, 12)]
    for color in COLORS:
        if color != PALETTE["black"]:
            dark = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], float)
            known += [dark + pale * (255 - dark) for pale in (0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.83, 0.92)]
    places = dict.fromkeys(tuple(map(int, color.round())) for color in known)
    pixels = np.asarray(image).reshape(-1, 3)
    found, at, often = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    places |= dict.fromkeys(tuple(map(int, color)) for color in found[np.argsort(-often)[:count]])
    palette = np.array(list(places)[: max(count, 64)], np.int32)
    # Not by Pillow's own search, which takes a colour nearby for the nearest, and so an almost white for white.
    nearest = [((palette - color) ** 2).sum(1).argmin() for color in found.astype(np.int32)]
    made = Image.frombytes("P", image.size, np.array(nearest, np.uint8)[at.ravel()].tobytes())
    made.putpalette(palette.astype(np.uint8).tobytes())
    return made


def figure(
    width: float = 7.0, height: float = 2.8, rows: int = 1, columns: int = 1, **subplots: Any
) -> tuple[Picture, np.ndarray]:
    """An empty figure and its axes, flat in reading order.

    Args:
        width, height: inches.
        rows, columns: of axes.
        subplots: for ``Figure.subplots``, e.g. ``sharex=True``.
    """
    made = Picture(figsize=(width, height), layout="constrained", facecolor="white")
    axes = made.subplots(rows, columns, squeeze=False, **subplots).ravel()
    for ax in axes:
        plain(ax)
    return made, axes


def plain(ax: Axes) -> Axes:
    """Axes with two thin spines, a faint grid and small dark-grey text."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(TEXT)
    ax.tick_params(labelsize=8, color=TEXT, labelcolor=TEXT)
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def image_axes(ax: Axes, title: str = "") -> Axes:
    """Axes that hold an image: no ticks, no grid."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=7, color=TEXT, pad=2)
    return ax


def label(ax: Axes, x: str = "", y: str = "", title: str = "") -> None:
    """Names of the axes, with their units."""
    ax.set_xlabel(x, fontsize=9, color=TEXT)
    ax.set_ylabel(y, fontsize=9, color=TEXT)
    if title:
        ax.set_title(title, fontsize=9, color=TEXT)


def legend(ax: Axes, **options: Any) -> None:
    """The legend, where there is more than one line to tell apart."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) > 1:
        ax.legend(handles, labels, fontsize=8, frameon=False, labelcolor=TEXT, **options)


def save(figure: Figure, path: str | os.PathLike[str], width: str | float = "page") -> Path:
    """Write a figure at paper size, the same bytes for the same figure.

    Args:
        figure: any matplotlib figure.
        path: ending in ``.svg``, ``.pdf`` or ``.png`` (300 dots an inch).
        width: ``"column"`` (3.35 inches), ``"page"`` (6.9 inches), or inches; the height follows, and the text
            shrinks where a wide figure gets narrow, from 8 points to no less than 5.

    Returns:
        the path.

    Raises:
        ValueError: another ending or width.
    """
    path = Path(path)
    kind = choose(path.suffix.lower(), FORMATS, "ending of a figure's file")
    inches = choose(width, WIDTHS, "width") if isinstance(width, str) else float(width)
    if not inches > 0:
        raise ValueError(f"width is {width}; it must be 'column', 'page' or a number of inches above 0")
    path.parent.mkdir(parents=True, exist_ok=True)
    unstamped: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    made = _copy(figure)  # the one given stays as it is, and its layout begins where it began before
    wide, high = made.get_size_inches()
    made.set_size_inches(inches, high * max(inches / wide, 0.7))
    _scale_text(made, min(1.0, max(SMALLEST, 1.25 * inches / wide)))
    with matplotlib.rc_context({"svg.hashsalt": "cnnkit"}):
        made.savefig(path, format=kind, dpi=300, facecolor="white", metadata=unstamped[kind])
    return path


def _copy(figure: Figure) -> Figure:
    """Another one like it, outside pyplot even if the first is pyplot's."""
    canvas: Any = figure.canvas
    manager, canvas.manager = canvas.manager, None
    try:
        return copy.deepcopy(figure)
    finally:
        canvas.manager = manager


def _scale_text(figure: Figure, factor: float) -> None:
    for text in figure.findobj(Text):
        text.set_fontsize(factor * float(text.get_fontsize()))
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        # Ticks that are not there yet take their size from here.
        size: Any = axis.get_tick_params().get("labelsize", matplotlib.rcParams["xtick.labelsize"])
        axis.set_tick_params(labelsize=factor * float(FontProperties(size=size).get_size_in_points()))


def case_ticks(ax: Axes, rows: Sequence[Mapping[str, Any]], width: int = 30) -> None:
    """Name the cases of rows up the y axis, long ones on several lines, each with its number of values."""
    names = [textwrap.fill(f"{r['case']} (n\xa0=\xa0{r['n']})", width) for r in rows]
    ax.set_yticks(range(len(rows)), names)


def few_ticks(axis: Any, most: int = 4, whole: bool = False) -> None:
    """At most so many ticks on an axis, at whole numbers if so wished; labels of five digits then stay apart."""
    axis.set_major_locator(MaxNLocator(most, integer=whole, min_n_ticks=1 if whole else 2))


def log_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis as plain numbers: at 1, 2 and 5 of each decade, at every ninth of a part of one."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 4 * low else MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, at: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
