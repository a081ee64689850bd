"""Experiments as they were saved: their tables and figures, and the works' figures beside ours, without running anything."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cnnkit.experiments.base import EXPERIMENTS, Outcome, Row, find, told

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
"""What was measured for this version, in a checkout of the project."""

AT_LENGTH = {"cluster": "cluster_cpu", **{name: name for name in ("mnist_accuracy", "cifar10_accuracy")}}
"""Benchmarks whose rows are an experiment's, with longer windows and more of them, or in full size."""

MISSING = "not measured here"


class Line(NamedTuple):
    """A figure of a work, and ours: of one case of one experiment, from one file."""

    experiment: str
    source: str
    case: str
    figure: str
    original: float
    ours: Row | None
    where: str


def read(name: str, folder: str | Path | None = None) -> Outcome | None:
    """An experiment's outcome as `reproduce` left it in a folder; None where there is none.

    Args:
        name: one of `EXPERIMENTS`.
        folder: when left out, the project's results: what was measured at length, or else ``reproduced``.

    Raises:
        ValueError: an unknown experiment.
    """
    experiment = find(name)
    there = [RESULTS / f"{AT_LENGTH[name]}.json"] if name in AT_LENGTH else []
    there.append(RESULTS / "reproduced" / f"{name}.json")
    paths = [path for path in (there if folder is None else [Path(folder) / f"{name}.json"]) if path.exists()]
    if not paths:
        return None
    kept = json.loads(paths[0].read_text(encoding="utf-8"))
    figure = experiment.figure(kept["rows"])
    figure.colors = 128
    preset, seconds = kept.get("preset", "at length"), kept.get("seconds", float("nan"))
    return Outcome(experiment, preset, kept["rows"], figure, paths[0].parent, seconds, kept["machine"])


def lines(results: Path = RESULTS) -> list[Line]:
    """Every figure that a work reports and an experiment repeats, beside each of ours.

    Args:
        results: a folder with ``reproduced/NAME.json``, ``NAME_cpu.json`` and ``NAME_gpu.json``.
    """
    found = []
    for name in EXPERIMENTS:
        experiment = find(name)
        files = list(_files(name, results))
        for (case, figure), original in experiment.originals.items():
            ours = [
                (row, row.get("measured", file)["machine"])
                for file in files
                for row in file["rows"]
                if (row["case"], row["figure"]) == (case, figure)
            ]
            for row, where in ours or [(None, "")]:
                found.append(Line(name, experiment.source, case, figure, original, row, where))
    return found


def table(found: Sequence[Line]) -> str:
    """The lines as text, machines below."""
    machines = list(dict.fromkeys(line.where for line in found if line.where))
    rows = [("experiment", "case", "figure", "original", "ours", "n", "where")]
    for line in found:
        ours, n, where = MISSING, "", ""
        if line.ours is not None:
            ours = told(line.ours)
            n, where = str(line.ours["n"]), "abcdefghijkl"[machines.index(line.where)]
        rows.append((line.experiment, line.case, line.figure, f"{line.original:g}", ours, n, where))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*text, *(f"{'abcdefghijkl'[i]}: {name}" for i, name in enumerate(machines))])


def figure(found: Sequence[Line]) -> Any:
    """Ours over the works' figures, a line each; those that are missing say so."""
    from cnnkit.notebook import style

    picture, (ax,) = style.figure(7.0, 0.9 + 0.24 * max(len(found), 1))
    for i, line in enumerate(found):
        if line.ours is None:
            ax.text(1.02, i, MISSING, va="center", fontsize=7, color=style.TEXT)
            continue
        ratio, spread = (line.ours[key] / line.original for key in ("value", "spread"))
        ax.errorbar(
            [ratio], [i], xerr=[spread], color=style.PALETTE["blue"], marker="o", markersize=5, capsize=2
        )
        ax.annotate(
            f"{line.ours['value']:.4g} (work: {line.original:g})", (ratio, i), (0, 4), textcoords="offset points",
            fontsize=7, color=style.TEXT, ha="center",
        )  # fmt: skip
    ax.axvline(1, color=style.TEXT, linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(found)), [f"{line.experiment}: {line.case}, {line.figure}" for line in found])
    ax.set_ylim(len(found) - 0.5, -0.7)
    ax.margins(x=0.3)
    style.label(ax, "ours over the work's")
    picture.colors = 128
    return picture


def _files(name: str, results: Path) -> Iterator[dict[str, Any]]:
    for path in (
        results / "reproduced" / f"{name}.json",
        *(results / f"{name}{end}.json" for end in ("", "_cpu", "_gpu")),
    ):
        if path.exists():
            yield json.loads(path.read_text(encoding="utf-8"))
