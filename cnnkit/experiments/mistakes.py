"""What was kept of an accuracy's measurement: its rows, the images that a committee gets wrong, its confusion."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.experiments.base import EXPERIMENTS, Row, find, table
from cnnkit.experiments.saved import RESULTS
from cnnkit.names import choose


def kept(name: str, results: Path = RESULTS, small: bool = False) -> dict[str, Any]:
    """The measurement of an experiment that lies in the project's results, the full one if there is one.

    Args:
        name: one of `EXPERIMENTS`.
        results: where ``NAME.json`` and ``reproduced/NAME.json`` are looked for, in this order.
        small: look for the second one first, which is of the small preset and of data that comes along.

    Raises:
        FileNotFoundError: neither is there.
        ValueError: an unknown experiment.
    """
    choose(name, EXPERIMENTS, "experiment")
    paths = [results / f"{name}.json", results / "reproduced" / f"{name}.json"]
    for path in reversed(paths) if small else paths:
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
    raise FileNotFoundError(
        f"nothing was kept of {name}: neither {paths[0]} nor {paths[1]} is there; measure it with "
        f"cnnkit reproduce {name}"
    )


def told(found: Mapping[str, Any]) -> str:
    """A kept measurement's table, as the experiment prints it."""
    return table(find(found["name"]), found["rows"], found["machine"])


def choices(rows: Sequence[Row]) -> str:
    """What was chosen, and on which held-out figures: a line each, a star before what was taken."""
    tried = [r for r in rows if r["figure"] == "held_out_accuracy"]
    names = [r["case"].removeprefix("choice: ") for r in tried]
    wide = max(map(len, names), default=0)
    lines = []
    for name, r in zip(names, tried, strict=True):
        star = "*" if r.get("chosen") else " "
        spread = f" ± {r['spread']:.2g}" if r["n"] > 1 else ""
        lines.append(f"{star} {name:<{wide}}  {r['mean']:.2f}{spread} % (n = {r['n']})")
    return "\n".join(lines)


def committee(rows: Sequence[Row]) -> Row:
    """The row of the committees' accuracies.

    Raises:
        ValueError: there is none.
    """
    for r in rows:
        if r["case"].startswith("committee") and r["figure"] == "accuracy":
            return r
    raise ValueError("these rows have no committee")


def wrong(rows: Sequence[Row], data: Any, columns: int = 10) -> Any:
    """Every test image that the first committee gets wrong: what it is → what is said, and how many committees err.

    Args:
        rows: of ``mnist_accuracy``.
        data: the data set that they were measured on.
        columns: images in a line.
    """
    from cnnkit.notebook import style

    found = committee(rows)
    mistakes = sorted(found["wrong"], key=lambda m: -m[3])
    columns = max(1, min(columns, len(mistakes)))
    lines = max(1, -(-len(mistakes) // columns))
    figure, axes = style.figure(max(0.7 * columns, 2.0), 0.95 * lines + 0.1, lines, columns)
    for ax in axes:
        style.image_axes(ax)
    for ax, (number, label, said, often) in zip(axes, mistakes):
        image = data.test.images[number]
        ax.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray")
        names = f"{data.classes[label]} → {data.classes[said]}"
        ax.set_title(f"{names}\n{often} of {found['n']}", fontsize=7, color=style.TEXT, pad=2)
    return figure


def confusion(rows: Sequence[Row], classes: Sequence[str]) -> Any:
    """How often the first committee takes each class (row) for each (column).

    Args:
        rows: of ``mnist_accuracy``.
        classes: their names.
    """
    from cnnkit.notebook import style

    counts = np.array(committee(rows)["confusion"])
    off = counts - np.diag(np.diag(counts))
    size = 0.34 * len(classes) + 1.4
    figure, (ax,) = style.figure(size, size)
    # Coloured by the mistakes alone, which would not be seen beside a thousand right answers.
    ax.imshow(off, cmap="Oranges", vmin=0, vmax=max(1, int(off.max())))
    ax.grid(False)
    for (i, j), count in np.ndenumerate(counts):
        if count:
            color = "white" if i != j and count > 0.6 * max(2, off.max()) else style.TEXT
            ax.text(j, i, f"{count}", ha="center", va="center", fontsize=7, color=color)
    ax.set_xticks(range(len(classes)), classes)
    ax.set_yticks(range(len(classes)), classes)
    style.label(ax, "the committee says", "it is", f"{np.trace(counts)} of {counts.sum()} right")
    return figure
