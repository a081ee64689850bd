"""The figures beside the results of `benchmarks.core` and `benchmarks.accuracy_time`, drawn from their files.

python -m benchmarks.figures    draws them all anew
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from cnnkit.notebook import plots, style

Rows = Sequence[dict[str, Any]]


def speeds(rows: Rows) -> Any:
    """Training speed of each network on every side, over the fastest peer's."""
    found = [row for row in rows if row["figure"] == "train_images_per_s" and "others" in row]
    sides = list(dict.fromkeys(side for row in found for side in row["others"]))
    picture, (axes,) = style.figure(6.9, 0.9 + 0.42 * len(found))
    height = 0.8 / (1 + len(sides))
    for i, side in enumerate(["cnnkit", *sides]):
        speed = [row["value"] if side == "cnnkit" else row["others"].get(side, np.nan) for row in found]
        parts = np.array(speed) / [row["peer_value"] for row in found]
        at = np.arange(len(found)) + (i - len(sides) / 2) * height
        axes.barh(at, parts, height, color=style.COLORS[i], label=side)
        if side == "cnnkit":
            for y, part, row in zip(at, parts, found, strict=True):
                axes.annotate(f" {row['ratio']:.2f}", (part, y), va="center", fontsize=7, color=style.TEXT)
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_yticks(range(len(found)), [row["case"].replace("@", ", batch ") for row in found])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(row["ratio"] for row in found))
    style.label(axes, "images a second, over the fastest peer's")
    style.legend(axes)
    return picture


def trainings(rows: Rows) -> Any:
    """Accuracy against seconds: each training where all were kept, and each network's median with its deviation."""
    picture, (axes,) = style.figure(4.6, 3.2)
    cases = [row["case"] for row in rows if row["figure"] == "accuracy"]
    for i, case in enumerate(cases):
        accuracy, seconds = (
            next(row for row in rows if (row["case"], row["figure"]) == (case, figure))
            for figure in ("accuracy", "seconds")
        )
        color = style.COLORS[i % len(style.COLORS)]
        if "found" in seconds:
            axes.plot(seconds["found"], accuracy["found"], "o", color=color, markersize=3, alpha=0.4)
        axes.errorbar(
            seconds["value"], accuracy["value"], accuracy["spread"], seconds["spread"],
            "D", color=color, markersize=5,
        )  # fmt: skip
        axes.annotate(
            f" {case}, n = {accuracy['n']}", (seconds["value"], accuracy["value"]),
            xytext=(3, 5), textcoords="offset points", fontsize=8, color=style.TEXT,
        )  # fmt: skip
    took = [row["value"] for row in rows if row["figure"] == "seconds"]
    if max(took) > 5 * min(took):
        axes.set_xscale("log")
        style.log_ticks(axes.xaxis)
    else:
        axes.set_xlim(0, 1.6 * max(took))
    style.label(axes, "training and evaluation (s)", "test accuracy, last epoch (%)")
    return picture


DRAWN: dict[str, Callable[[Rows], Any]] = {"core": speeds, "accuracy_time": trainings}


def draw(name: str, folder: Path = results.FOLDER) -> Path:
    """NAME.png beside NAME.json."""
    picture = DRAWN[name.rpartition("_")[0]](results.read(name, folder)["rows"])
    path = folder / f"{name}.png"
    plots.save(picture, path)
    return path


if __name__ == "__main__":
    for kind in DRAWN:
        for file in sorted(results.FOLDER.glob(f"{kind}_?pu.json")):
            print(draw(file.stem))
