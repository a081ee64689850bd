"""Runs side by side: a table of what differs and what came of it, curves with bands, a chooser over a folder."""

import math
import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.notebook import plots
from cnnkit.notebook.series import X, Y, labelled, several
from cnnkit.notebook.strips import table
from cnnkit.notebook.style import PART_NAMES, Picture
from cnnkit.record.folder import settings_in
from cnnkit.record.rows import Record

MOST_SETTINGS = 6
UNTOLD = ("cnnkit", "seed", "epochs")  # of a config: not what one compares runs by


class Comparison:
    """Runs by label, several seeds to a label; shows as a table and curves.

    Args:
        runs: a list of runs or folders, or ``{label: runs of several seeds}``.
        x, y: of the curves, as in `plots.curves`.
    """

    def __init__(self, runs: Any, x: str = "epochs", y: str = "accuracy") -> None:
        self.records = labelled(runs)
        self.configs = _configs(runs, list(self.records))
        self.x, self.y = x, y

    def rows(self) -> list[dict[str, str]]:
        """The table: a row for each label, its cells by column."""
        differing = self._differing()
        made = []
        for label, records in self.records.items():
            row = {"run": label, "n": str(len(records))}
            row |= {key: _brief(_flat(self.configs[label]).get(key)) for key in differing}
            ends = [record.epochs()[-1] for record in records if record.epochs()]
            row["epochs"] = _span([end["epoch"] for end in ends])
            for part in ("test", "held_out"):
                values = [100 * end[f"{part}_accuracy"] for end in ends if f"{part}_accuracy" in end]
                if values:
                    row[f"{PART_NAMES[part]} accuracy"] = f"{_mean(values, 2)} %"
            row["training loss"] = _mean([end["train_loss"] for end in ends if "train_loss" in end], 4)
            row["training"] = f"{_mean([end['train_total'] for end in ends if 'train_total' in end], 1)} s"
            made.append(row)
        return made

    def figure(self) -> Picture:
        """The curves, seeds as mean and band."""
        return plots.curves(self.records, self.x, self.y)

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in cells)

    __repr__ = __str__

    def html(self) -> str:
        """The table as HTML."""
        head, *body = self._cells()
        return table([[f"<b>{escape(c)}</b>" for c in head], *([escape(c) for c in line] for line in body)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        from cnnkit.notebook.face import picture_html

        try:
            figure = self.figure()
        except ValueError:  # nothing recorded yet: the table alone
            return {"text/plain": str(self), "text/html": self.html()}, {}
        data, metadata = figure._repr_mimebundle_()
        html = self.html() + picture_html(figure, "curves of the runs")
        return data | {"text/plain": str(self), "text/html": html}, metadata

    def _cells(self) -> list[list[str]]:
        rows = self.rows()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        return [columns, *([row.get(column, "") for column in columns] for row in rows)]

    def _differing(self) -> list[str]:
        flat = [_flat(config) for config in self.configs.values()]
        keys = dict.fromkeys(key for config in flat for key in config)
        found = [key for key in keys if key.split(".")[0] not in UNTOLD]
        found = [key for key in found if len({repr(c.get(key)) for c in flat}) > 1]
        # That they are damaged comes first, as everything else differs too then.
        return sorted(found, key=lambda key: key != "settings")[:MOST_SETTINGS]


def compare(runs: Any, x: str = "epochs", y: str = "accuracy") -> Comparison:
    """Runs side by side at their last epoch: settings that differ, accuracies ± deviation over seeds, times.

    Args:
        runs: a list of Runs or folders; ``{label: runs of several seeds}``; or a folder that holds runs.
        x, y: of the curves, as in `plots.curves`.
    """
    if isinstance(runs, str | os.PathLike) and not (Path(runs) / "record.jsonl").exists():
        runs = runs_in(runs)
    return Comparison(runs, x, y)


def runs_in(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Every run under a folder, by its path from there.

    Raises:
        FileNotFoundError: none lies there.
    """
    root = Path(folder)
    found = sorted(
        path.parent for path in root.rglob("record.jsonl") if (path.parent / "config.json").exists()
    )
    if not found:
        raise FileNotFoundError(
            f"no run lies under {root}; runs are folders that Run(…, folder=…) has trained in"
        )
    return {str(path.relative_to(root)) if path != root else path.name: path for path in found}


def _configs(runs: Any, labels: list[str]) -> dict[str, dict[str, Any]]:
    groups = runs.values() if isinstance(runs, dict) else several(runs)
    firsts = [several(group)[0] for group in groups]
    return {label: _config(first) for label, first in zip(labels, firsts)}


def _config(run: Any) -> dict[str, Any]:
    if isinstance(run, str | os.PathLike):
        return _settings(run)
    if isinstance(run, Record):
        return _settings(run.path.parent) if run.path else {}
    return dict(getattr(run, "config", {}))


def _settings(folder: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return settings_in(folder) or {}
    except ValueError:  # its curve can be drawn all the same
        return {"settings": "damaged"}


def _flat(config: Any, path: str = "") -> dict[str, Any]:
    if isinstance(config, dict):
        return {
            k: v
            for key, value in config.items()
            for k, v in _flat(value, f"{path}.{key}" if path else key).items()
        }
    return {path: config}


def _brief(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} layers"
    return "–" if value is None else str(value)


def _span(values: list[int]) -> str:
    if not values:
        return "0"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _mean(values: Iterable[float], digits: int) -> str:
    values = list(values)
    if not values:
        return "–"
    mean = f"{math.fsum(values) / len(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


class Chooser:
    """A list of the runs under a folder; those chosen are compared below it.

    Args:
        folder: where to look for runs.
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs") -> None:
        import ipywidgets as widgets

        self.runs = runs_in(folder)
        layout = {"width": "420px", "height": f"{min(22 * len(self.runs) + 12, 200)}px"}
        self.list = widgets.SelectMultiple(options=list(self.runs), value=tuple(self.runs)[:6], layout=layout)
        self.x = widgets.Dropdown(options=list(X), description="against")
        self.y = widgets.Dropdown(options=list(Y), description="curve")
        self.below = widgets.HTML()
        self.box = widgets.VBox(
            [widgets.HBox([self.list, widgets.VBox([self.x, self.y])]), self.below], layout={"width": "100%"}
        )
        for widget in (self.list, self.x, self.y):
            widget.observe(lambda change: self._draw(), "value")
        self._draw()

    def comparison(self) -> Comparison:
        """Of the runs that are chosen now."""
        return Comparison({name: self.runs[name] for name in self.list.value}, self.x.value, self.y.value)

    def _draw(self) -> None:
        chosen = self.list.value
        self.below.value = (
            self.comparison()._repr_mimebundle_()[0]["text/html"] if chosen else "choose some runs"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        data, metadata = self.comparison()._repr_mimebundle_()
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return data | {"application/vnd.jupyter.widget-view+json": view}, metadata


def chooser(folder: str | os.PathLike[str] = "runs") -> Chooser:
    """Choose among the runs under a folder with the mouse, and see them compared.

    Args:
        folder: where the runs lie.

    Raises:
        FileNotFoundError: none lies there.
    """
    return Chooser(folder)
