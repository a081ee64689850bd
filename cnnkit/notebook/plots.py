"""Figures of training: curves of one run or many, and what the workers did round by round."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from cnnkit.names import choose, lacking
from cnnkit.notebook import style
from cnnkit.notebook.series import PARTS, Curve, X, Y, columns, curve, labelled, record_of
from cnnkit.notebook.style import Picture, save
from cnnkit.record.rows import Record

__all__ = ["curves", "rounds", "save", "training"]


def curves(
    runs: Any,
    x: str = "epochs",
    y: str | Sequence[str] = "accuracy",
    parts: Sequence[str] | None = None,
    log: bool = False,
) -> Picture:
    """Accuracy, error, loss or any recorded column against epochs, examples or seconds.

    Several seeds become their mean and a band of one standard deviation, over the epochs that all of them
    have; seconds are those of training alone, without compiling and evaluating.

    Args:
        runs: a Run or a run's folder; a list of them; or ``{label: runs of several seeds}``.
        x: ``"epochs"``, ``"examples"`` or ``"seconds"``.
        y: ``"accuracy"``, ``"error"``, ``"loss"``, another column of the record such as ``"lr"``, or several
            of these, side by side.
        parts: of ``"train"``, ``"held_out"``, ``"test"``; when left out, all for one run, and for several
            the test set, or what they have been judged by instead.
        log: a logarithmic y axis.

    Raises:
        ValueError: an unknown x, y or part, or nothing recorded yet; the text says which.
        FileNotFoundError: a folder without a record.
    """
    choose(x, X, "x")
    records = labelled(runs)
    wanted = (y,) if isinstance(y, str) else tuple(y)
    everything = [r for some in records.values() for r in some]
    if not any(r.epochs() for r in everything):
        raise ValueError("no epoch has been recorded yet; train first, then draw")
    known = columns(everything)
    for name in wanted:
        if name not in Y:
            choose(name, dict.fromkeys(Y) | known, "y")
    shown = _parts(parts, records, known)
    wide = len(wanted) > 1
    figure, axes = style.figure(7.0 if wide else 5.0, 2.8 if wide else 3.2, columns=len(wanted))
    for ax, name in zip(axes, wanted):
        if log:
            ax.set_yscale("log")
        _draw(ax, records, x, name, shown)
        if log:
            style.log_ticks(ax.yaxis)
    return figure


def training(run: Any, x: str = "epochs") -> Picture:
    """Loss and accuracy of one run side by side, with fetch_i as a third where it has several workers.

    Args:
        run: a Run or a run's folder.
        x: ``"epochs"``, ``"examples"`` or ``"seconds"``.
    """
    record = record_of(run)
    rows = record.rounds()
    if not rows:
        return curves(record, x, ("loss", "accuracy"))
    figure, axes = style.figure(8.4, 2.6, columns=3)
    shown = _parts(None, {"": [record]}, columns([record]))
    for ax, name in zip(axes, ("loss", "accuracy")):
        _draw(ax, {"": [record]}, x, name, shown)
    at = {"epochs": "epochs", "examples": "examples"}.get(x)
    xs = [row[at] for row in rows] if at else np.cumsum([row.get("seconds") or 0.0 for row in rows])
    _by_worker(axes[2], np.asarray(xs, float), rows, "fetch")
    style.label(axes[2], X[x][1], "fetch_i (local steps)")
    return figure


def rounds(run: Any) -> Picture:
    """What each worker did: its local steps a round (fetch_i), and the share of the time it was busy.

    Args:
        run: a Run, or a run's folder, of several workers.

    Raises:
        ValueError: it has recorded no rounds.
    """
    rows = record_of(run).rounds()
    if not rows:
        raise ValueError("no rounds have been recorded; runs of several workers record them")
    at = np.array([row["epochs"] for row in rows], float)
    figure, axes = style.figure(7.0, 2.8, columns=2)
    names = {"fetch": "fetch_i (local steps)", "busy": "busy share (%)"}
    for ax, (column, name) in zip(axes, names.items()):
        _by_worker(ax, at, rows, column)
        style.label(ax, "epochs", name)
    axes[1].set_ylim(0, 105)
    return figure


def _by_worker(ax: Axes, at: np.ndarray, rows: Sequence[dict[str, Any]], column: str) -> None:
    workers = max(len(row[column]) for row in rows)
    for worker in range(workers):
        # Workers may come and go between two sessions of a run.
        values = [_value(row[column][worker]) if worker < len(row[column]) else np.nan for row in rows]
        line: dict[str, Any] = {
            "color": style.COLORS[worker % len(style.COLORS)],
            "linestyle": style.LINES[worker % len(style.LINES)],
            "drawstyle": "steps-pre" if column == "fetch" else "default",
        }
        scale = 100 if column == "busy" else 1
        ax.plot(at, scale * np.array(values), label=f"worker {worker}", linewidth=1.4, **line)
    ax.set_ylim(bottom=0)
    if column == "fetch":
        # Above the axes: lines that stay where they are for a whole training leave no free corner.
        beside = {"ncols": 2 if workers <= 4 else 4, "columnspacing": 1.0, "handlelength": 1.8}
        style.legend(ax, loc="lower right", bbox_to_anchor=(1.0, 1.0), **beside)


def _draw(ax: Axes, records: dict[str, list[Record]], x: str, y: str, parts: Sequence[str]) -> None:
    ending, name, scale = Y.get(y, (None, y.replace("_", " "), lambda v: v))
    for i, (label, some) in enumerate(records.items()):
        for part in parts if ending else ("",):
            found = curve(some, f"{part}_{ending}" if ending else y, x)
            if found is None:
                continue
            if len(records) == 1:
                look: dict[str, Any] = {
                    "color": style.PART_COLORS.get(part),
                    "linestyle": style.PART_LINES.get(part, "-"),
                }
                text = style.PART_NAMES.get(part, label)
            else:
                line = (
                    style.PART_LINES[part] if len(parts) > 1 and part else style.LINES[i % len(style.LINES)]
                )
                look = {"color": style.COLORS[i % len(style.COLORS)], "linestyle": line}
                text = f"{label}, {style.PART_NAMES[part]}" if len(parts) > 1 and part else label
            if found.runs > 1:
                text += f" (n = {found.runs})"
            _line(ax, found, scale, text, look)
    style.label(ax, X[x][1], name)
    style.legend(ax)
    if x == "epochs":
        style.few_ticks(ax.xaxis, 8, whole=True)
        left, right = ax.dataLim.intervalx
        if left == right:
            ax.set_xlim(left - 0.5, right + 0.5)
    low, high = ax.get_ylim()
    if name.endswith("(%)") and ax.get_yscale() == "linear" and not -2 <= low <= high <= 102:
        ax.set_ylim(max(low, -2.0), min(high, 102.0))  # a wide band leaves what there can be


def _line(ax: Axes, found: Curve, scale: Any, text: str, look: dict[str, Any]) -> None:
    y = scale(found.y)
    marker: dict[str, Any] = {"marker": "o", "markersize": 3} if len(y) < 12 else {}
    (line,) = ax.plot(found.x, y, label=text, linewidth=1.5, **look, **marker)
    if found.spread is not None:
        # An error falls where an accuracy rises: the band is as wide either way.
        half = np.abs(scale(found.y + found.spread) - y)
        if len(y) == 1:  # a band of no width is not seen
            ax.errorbar(found.x, y, half, color=line.get_color(), linestyle="none", capsize=3)
        ax.fill_between(found.x, y - half, y + half, color=line.get_color(), alpha=0.18, linewidth=0)


def _parts(
    parts: Sequence[str] | None, records: dict[str, list[Record]], known: dict[str, str]
) -> tuple[str, ...]:
    if parts is not None:
        for part in parts:
            choose(part, dict.fromkeys(PARTS), "part")
        return tuple(parts)
    there = tuple(part for part in PARTS if f"{part}_accuracy" in known)
    if len(records) == 1:
        return there
    return next(((part,) for part in ("test", "held_out", "train") if part in there), ())


def _value(value: float | None) -> float:
    return np.nan if value is None else value


if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    __getattr__ = lacking(__name__, __all__)
