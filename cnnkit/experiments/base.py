"""What an experiment is, how one is run by name and preset, and where its results land."""

import importlib
import json
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cnnkit.names import choose
from cnnkit.record.folder import check_writable, write_whole

Row = dict[str, Any]

PRESETS = ("smoke", "small", "full")

WIDTH = 96  # of a table in letters: a notebook breaks longer lines anywhere
MIN_CASE = 24  # of its first column

# In the order of the works; one that has no module here is left out.
_ORDER = (
    "conv_algorithms",
    "fetch_period",
    "load_balance",
    "warm_start",
    "scheduler",
    "single_machine",
    "cluster",
    "overlap",
    "mnist_accuracy",
    "cifar10_accuracy",
    "fast_cifar10",
)

EXPERIMENTS: dict[str, str] = {
    name: f"cnnkit.experiments.{name}" for name in _ORDER if Path(__file__).with_name(f"{name}.py").exists()
}
"""The module of each experiment, by name."""


@dataclass(frozen=True)
class Experiment:
    """One experiment of the works reproduced. Each module of this room holds one, as ``EXPERIMENT``.

    Args:
        name: as `reproduce` takes it.
        title: what it shows, in a few words.
        source: the section of the thesis, or the paper, that it comes from.
        presets: settings by preset: ``smoke`` (seconds), ``small`` (minutes on a laptop), ``full`` (GPU).
        run: ``run(settings, folder) -> rows``; rows are ``{"case", "figure", "value", "unit", "n",
            "spread", …}``, runs and logs may be left in the folder.
        figure: ``figure(rows) -> matplotlib Figure``.
        originals: what the work reports, ``{(case, figure): value}``; a case that ours lacks stands alone.
        note: what a reader must know to compare.
        shown: figures that the table has; all when left empty. The file has every row.
    """

    name: str
    title: str
    source: str
    presets: Mapping[str, Mapping[str, Any]]
    run: Callable[[Mapping[str, Any], Path], list[Row]]
    figure: Callable[[list[Row]], Any]
    originals: Mapping[tuple[str, str], float] = field(default_factory=dict)
    note: str = ""
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """An experiment's rows, its figure and where both lie."""

    experiment: Experiment
    preset: str
    rows: list[Row]
    figure: Any
    folder: Path
    seconds: float
    machine: str

    def __str__(self) -> str:
        """The table: the work's figure, ours, how many, the machine."""
        return table(self.experiment, self.rows, self.machine)


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: unknown; the nearest is suggested.
    """
    module = choose(name, EXPERIMENTS, "experiment")
    return importlib.import_module(module).EXPERIMENT


def reproduce(
    name: str, preset: str = "small", folder: str | Path = "runs/reproduced", **changes: Any
) -> Outcome:
    """Run an experiment and leave its results in one folder: ``NAME.json``, ``NAME.png``, ``NAME.svg``.

    Args:
        name: one of `EXPERIMENTS`.
        preset: ``smoke``, ``small`` or ``full``.
        folder: where results and figures land, beside those of other experiments.
        changes: settings to take in place of the preset's.

    Raises:
        ValueError: an unknown experiment, preset or setting.
        OSError: the folder cannot be written; said before anything runs.
    """
    from cnnkit.notebook import plots

    experiment = find(name)
    settings = dict(choose(preset, experiment.presets, "preset"))
    for key, value in changes.items():
        choose(key, settings, f"setting of {name}")
        settings[key] = value
    folder = check_writable(folder)
    begin = time.perf_counter()
    rows = experiment.run(settings, folder / name)
    seconds = time.perf_counter() - begin
    outcome = Outcome(experiment, preset, rows, experiment.figure(rows), folder, seconds, machine())
    outcome.figure.colors = 128
    if not first_of_job():
        return outcome
    written = {
        "name": name,
        "preset": preset,
        "settings": settings,
        "machine": outcome.machine,
        "versions": versions(),
        "seconds": round(seconds, 1),
        "command": f"cnnkit reproduce {name} --preset {preset}",
        "rows": rows,
    }
    write_whole(folder / f"{name}.json", (json.dumps(written, indent=1, ensure_ascii=False) + "\n").encode())
    for kind in ("png", "svg"):
        plots.save(outcome.figure, folder / f"{name}.{kind}")
    return outcome


def first_of_job() -> bool:
    """Whether this process writes for its job."""
    import jax

    return jax.process_index() == 0


def row(case: str, figure: str, values: list[float], unit: str, **more: Any) -> Row:
    """One figure as its median over repetitions, with their number and standard deviation."""
    import statistics

    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    value = float(f"{statistics.median(values):.4g}")
    return {
        "case": case,
        "figure": figure,
        "value": value,
        "unit": unit,
        "n": len(values),
        "spread": float(f"{spread:.2g}"),
    } | more


def told(row: Row) -> str:
    """A row's value ± spread and unit; ≤ where what it was measured beside can only have made it larger.

    >>> told({"value": 67.4, "spread": 8.1, "unit": "s", "at_most": True})
    '≤ 67.4 ± 8.1 s'
    """
    bound = "≤ " if row.get("at_most") else ""
    return f"{bound}{row['value']:g} ± {row['spread']:g} {row['unit']}"


def table(experiment: Experiment, rows: list[Row], machine: str) -> str:
    """Rows as text: case, figure, the work's value, ours ± spread (n), and the machine below."""
    lines = [("case", "figure", "original", "ours", "n")]
    seen = set()
    for r in rows:
        key = (r["case"], r["figure"])
        seen.add(key)
        if experiment.shown and r["figure"] not in experiment.shown:
            continue
        original = experiment.originals.get(key)
        lines.append(
            (r["case"], r["figure"], "–" if original is None else f"{original:g}", told(r), str(r["n"]))
        )
    lines += [
        (case, figure, f"{v:g}", "–", "")
        for (case, figure), v in experiment.originals.items()
        if (case, figure) not in seen
    ]
    rest = sum(2 + max(len(line[i]) for line in lines) for i in range(1, 5))
    folded = [part for line in lines for part in _folded(line, max(WIDTH - rest, MIN_CASE))]
    widths = [max(len(line[i]) for line in folded) for i in range(5)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in folded]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(
        [
            f"{experiment.title} ({experiment.source})",
            *text,
            f"on {machine}",
            "ours: median ± standard deviation over n",
            *textwrap.wrap(experiment.note, WIDTH, break_long_words=False, break_on_hyphens=False),
        ]
    )


def _folded(line: tuple[str, ...], width: int) -> list[tuple[str, ...]]:
    """A line of a table, and lines below it for what of its first cell goes beyond the width."""
    first, *below = textwrap.wrap(line[0], width, subsequent_indent="  ", break_on_hyphens=False) or [""]
    return [(first, *line[1:]), *((part, "", "", "", "") for part in below)]


def machine() -> str:
    """Processor and devices, without host names."""
    import os
    import platform

    import jax

    devices = jax.devices()
    kinds = [f"{len(devices)} × {devices[0].device_kind}"] if devices[0].platform != "cpu" else []
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return ", ".join([f"{os.cpu_count()} cores of {cpu}", *kinds])


def versions() -> dict[str, str]:
    """Of Python, JAX and cnnkit."""
    import platform

    import jax

    import cnnkit

    return {"python": platform.python_version(), "jax": jax.__version__, "cnnkit": cnnkit.__version__}
