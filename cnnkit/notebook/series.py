"""What records say as curves: one value against epochs, examples or seconds, over one run or several seeds."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cnnkit.names import choose
from cnnkit.record.rows import Record

PARTS = ("train", "held_out", "test")
X = {
    "epochs": ("epoch", "epochs"),
    "examples": ("examples", "training examples"),
    "seconds": ("train_total", "seconds of training"),
}
"""What curves run against: the column of an epoch's row, and its name on an axis."""

Y = {
    "accuracy": ("accuracy", "accuracy (%)", lambda v: 100 * v),
    "error": ("accuracy", "error (%)", lambda v: 100 * (1 - v)),
    "loss": ("loss", "loss", lambda v: v),
}
"""What is measured on each part of the data: the column's ending, its name on an axis, and its scale."""


class Curve(NamedTuple):
    """A line with its band.

    Args:
        x, y: float [n], the mean over the runs at each epoch that all of them have.
        spread: float [n], the standard deviation over runs; None for a single one.
        runs: how many.
    """

    x: np.ndarray
    y: np.ndarray
    spread: np.ndarray | None
    runs: int


def record_of(run: Any) -> Record:
    """The record of a run, of a folder, or a record itself.

    Raises:
        FileNotFoundError: the folder holds no record.
        TypeError: something else.
    """
    if isinstance(run, Record):
        return run
    if isinstance(run, str | os.PathLike):
        if not (Path(run) / "record.jsonl").exists():
            raise FileNotFoundError(
                f"{run} holds no record.jsonl; give the folder of a run that has finished an epoch"
            )
        return Record(run)
    if hasattr(run, "record"):
        return run.record
    raise TypeError(
        f"{run!r} is neither a run nor a run's folder; pass a Run, a folder, or {{label: [runs]}}"
    )


def labelled(runs: Any) -> dict[str, list[Record]]:
    """Records by label: of one run, of several, or of ``{label: run or runs of several seeds}``."""
    if isinstance(runs, Mapping):
        return {str(label): [record_of(r) for r in several(some)] for label, some in runs.items()}
    names: dict[str, list[Record]] = {}
    for i, run in enumerate(several(runs)):
        name = name_of(run) or f"run {i}"
        names[name if name not in names else f"{name} ({i})"] = [record_of(run)]
    return names


def name_of(run: Any) -> str:
    """A run's folder by its own name, "" where it has none."""
    folder = run if isinstance(run, str | os.PathLike) else getattr(run, "folder", None)
    return Path(folder).name if folder else ""


def curve(records: Iterable[Record], column: str, x: str = "epochs") -> Curve | None:
    """One column of the epochs' rows, over runs that differ in their seed alone.

    Args:
        records: of those runs.
        column: e.g. ``"test_accuracy"``; epochs without it are passed over.
        x: ``"epochs"``, ``"examples"`` or ``"seconds"``.

    Returns:
        the curve over the epochs that every run has, None where there is none.
    """
    along, _ = choose(x, X, "x")
    found = [{row["epoch"]: row for row in r.epochs() if _is_number(row.get(column))} for r in records]
    shared = sorted(set.intersection(*map(set, found))) if found else []
    if not shared:
        return None
    xs = np.array([[rows[epoch][along] for epoch in shared] for rows in found], float)
    ys = np.array([[rows[epoch][column] for epoch in shared] for rows in found], float)
    spread = ys.std(0, ddof=1) if len(found) > 1 else None
    return Curve(xs.mean(0), ys.mean(0), spread, len(found))


def columns(records: Iterable[Record]) -> dict[str, str]:
    """The columns of numbers that epochs' rows have."""
    rows = [row for record in records for row in record.epochs()]
    return {key: key for row in rows for key, value in row.items() if _is_number(value)}


def several(runs: Any) -> list[Any]:
    """A list of runs, also of a single one."""
    one = isinstance(runs, str | os.PathLike | Record) or hasattr(runs, "record")
    return [runs] if one else list(runs)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
