"""Accuracy against the period: how many local steps between two exchanges cost accuracy, and buy time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnkit.experiments import accuracy
from cnnkit.experiments.base import Experiment, Row

MODES = ["local", "accumulate"]


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Train with each period in each mode, at the same number of examples."""
    return accuracy.compare(settings, {f"every({k})": k for k in settings["periods"]}, folder)


def figure(rows: list[Row]) -> Any:
    """Accuracy and time against the period, and each mode's curves against the examples seen."""
    from cnnkit.notebook import style

    modes = accuracy.modes(rows)
    picture, axes = style.figure(7.0, 5.4, rows=2, columns=2)
    against_period(axes[0], rows, "accuracy", "last test accuracy (%)")
    against_period(axes[1], rows, "seconds", "seconds of training")
    for ax, mode in zip(axes[2:], modes):
        accuracy.draw(ax, rows, mode)
    for ax in axes[2 + len(modes) :]:
        ax.set_visible(False)
    return picture


def against_period(ax: Any, rows: list[Row], name: str, label: str) -> None:
    """One figure of the rows against k, a line a mode, with one standard deviation."""
    from cnnkit.notebook import style

    for i, mode in enumerate(accuracy.modes(rows)):
        found = [r for r in rows if r["figure"] == name and r["case"].startswith(f"{mode} ")]
        k = [int(r["case"].rpartition("(")[2].rstrip(")")) for r in found]
        ax.errorbar(
            k, [r["value"] for r in found], [r["spread"] for r in found],
            color=style.COLORS[i], linestyle=style.LINES[i], marker="o", markersize=3, capsize=2, label=mode,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xticks(k, map(str, k))
    style.label(ax, "k, local steps between exchanges", label)
    style.legend(ax)


EXPERIMENT = Experiment(
    name="fetch_period",
    title="Accuracy against the period",
    source="thesis, section 5.3.2",
    presets={
        preset: {
            **training,
            "modes": MODES,
            "periods": [1, 8] if preset == "smoke" else [1, 2, 4, 8, 16, 32],
            "early": 3,
        }
        for preset, training in accuracy.TRAINING.items()
    },
    run=run,
    figure=figure,
    shown=("accuracy", "exchanges", "seconds"),
    note=(
        "Accuracy is of the last epoch, over seeds. The learning rate is the same for every k: in accumulate, "
        "where weights stay fixed between exchanges, k times fewer steps are taken."
    ),
)
