"""Accuracy of several policies at the same number of examples: the trainings, their rows and their curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.experiments.base import Row, row
from cnnkit.experiments.job import several

X = {"examples": "training examples", "seconds": "seconds of training"}

TRAINING: dict[str, dict[str, Any]] = {
    "smoke": {
        "data": "digits",
        "net": "linear",
        "workers": 2,
        "batch": 16,
        "epochs": 2,
        "seeds": 1,
        "lr": 0.02,
    },
    "small": {
        "data": "digits",
        "net": "small",
        "workers": 4,
        "batch": 8,
        "epochs": 12,
        "seeds": 3,
        "lr": 0.02,
    },
    "full": {
        "data": "mnist",
        "net": "lenet",
        "workers": 2,
        "batch": 64,
        "epochs": 20,
        "seeds": 5,
        "lr": 0.02,
    },
}
"""What is trained in each preset; the learning rate is the same for every policy."""


def compare(settings: Mapping[str, Any], policies: Mapping[str, Any], folder: Path) -> list[Row]:
    """Train every policy in every mode with every seed; accuracies of the last and of an early epoch.

    Args:
        settings: as `TRAINING`, and ``modes`` and ``early`` (an epoch).
        policies: fetch by label.
        folder: for logs.
    """
    shared = {key: settings[key] for key in ("data", "net", "batch", "epochs", "lr")}
    cases = [
        {**shared, "label": f"{mode} {label}", "mode": mode, "fetch": fetch, "seed": seed}
        for mode in settings["modes"]
        for label, fetch in policies.items()
        for seed in range(settings["seeds"])
    ]
    by_label: dict[str, list[Any]] = {}
    for found in several(cases, settings["workers"], folder):
        by_label.setdefault(found["label"], []).append(found["curve"])
    rows = []
    for label, curves in by_label.items():
        rows += _rows(label, curves, min(settings["early"], settings["epochs"]), settings["workers"])
    return rows


def _rows(label: str, curves: Sequence[Any], early: int, workers: int | None) -> list[Row]:
    def column(name: str) -> np.ndarray:
        return np.array([[point[name] for point in curve] for curve in curves], float)

    accuracy = 100 * column("accuracy")
    spread = accuracy.std(0, ddof=1) if len(curves) > 1 else np.zeros(accuracy.shape[1])
    curve = {
        "examples": column("examples")[0].tolist(),
        "seconds": column("seconds").mean(0).round(4).tolist(),
        "accuracy": accuracy.mean(0).round(3).tolist(),
        "spread": spread.round(3).tolist(),
    }
    return [
        row(label, "accuracy", accuracy[:, -1].tolist(), "%", workers=workers, curve=curve),
        row(label, "early_accuracy", accuracy[:, early - 1].tolist(), "%", epoch=early),
        row(label, "exchanges", column("exchanges")[:, -1].tolist(), "exchanges"),
        row(label, "seconds", column("seconds")[:, -1].tolist(), "s"),
    ]


def value(rows: Sequence[Row], case: str, figure: str) -> Row:
    """The row of a case and a figure.

    Raises:
        ValueError: there is none.
    """
    for r in rows:
        if (r["case"], r["figure"]) == (case, figure):
            return r
    raise ValueError(f"no row has case {case!r} and figure {figure!r}")


def modes(rows: Sequence[Row]) -> list[str]:
    """The modes that rows are of, in order."""
    return list(dict.fromkeys(r["case"].partition(" ")[0] for r in rows))


def draw(ax: Any, rows: Sequence[Row], mode: str, x: str = "examples") -> None:
    """The curves of one mode's policies, each with a band of one standard deviation."""
    from cnnkit.notebook import style

    found = [r for r in rows if r["figure"] == "accuracy" and r["case"].startswith(f"{mode} ")]
    for i, r in enumerate(found):
        curve = {name: np.array(values) for name, values in r["curve"].items()}
        color, line = style.COLORS[i % len(style.COLORS)], style.LINES[i % len(style.LINES)]
        name = r["case"].partition(" ")[2]
        ax.plot(curve[x], curve["accuracy"], color=color, linestyle=line, linewidth=1.4, label=name)
        low, high = curve["accuracy"] - curve["spread"], curve["accuracy"] + curve["spread"]
        ax.fill_between(curve[x], low, high, color=color, alpha=0.15, linewidth=0)
    style.label(ax, X[x], "test accuracy (%)", f"{mode}, mean of {found[0]['n']}")
    style.few_ticks(ax.xaxis, 5)
    style.legend(ax)


def curves(rows: Sequence[Row], x: str = "examples", floor: float | None = None) -> Any:
    """A figure with the curves of each mode side by side.

    Args:
        rows: of an experiment that used `compare`.
        x: ``"examples"`` or ``"seconds"``.
        floor: the lowest accuracy shown, in percent.

    Raises:
        ValueError: another x.
    """
    from cnnkit.names import choose
    from cnnkit.notebook import style

    choose(x, X, "x")
    names = modes(rows)
    figure, axes = style.figure(4.4 * len(names), 3.1, columns=len(names), sharey=True)
    for ax, mode in zip(axes, names):
        draw(ax, rows, mode, x)
        if floor is not None:
            ax.set_ylim(bottom=floor)
    figure.colors = 128
    return figure
