"""Rounds on workers of unequal speed: throughput and busy fractions of several policies, and what was predicted."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.experiments.base import Row, first_of_job, row
from cnnkit.experiments.job import several, unequal
from cnnkit.parallel.cost import RoundCost

TIMING: dict[str, dict[str, Any]] = {
    "smoke": {"steps": 8, "batch": 8, "wait": 0.008, "windows": [1, 0.15, 0.1]},
    "small": {"steps": 16, "batch": 8, "wait": 0.01, "windows": [3, 1.5, 1.5]},
    "full": {"steps": 32, "batch": 128, "wait": 0.01, "windows": [3, 3.0, 3.0]},
}
"""How it is timed in each preset: local steps a round, seconds that a step waits at speed 1 (on CPU), windows."""


def work() -> dict[str, Any]:
    """What workers do: on CPU a small network on digits beside waiting, on GPUs CUDA-CNN's for CIFAR-10."""
    from cnnkit.lab import environment

    if environment.gpus():
        return {
            "net": "cuda_cnn_cifar10",
            "data": "noise",
            "examples": 400_000,
            "augment": "crop24",
            "lr": 0.005,
        }
    return {"net": "linear", "data": "digits", "examples": 100_000}


def alone(settings: Mapping[str, Any], speeds: Sequence[float], folder: Path) -> dict[float, float]:
    """Images a second of a worker of each speed, without any other."""
    cases = [
        {**_shared(settings, [v]), "label": f"alone at speed {v:g}", "fetch": settings["steps"]}
        for v in sorted(set(speeds), reverse=True)
    ]
    found = several(cases, 1, folder / "alone")
    return {v: float(np.median(f["images_per_s"])) for v, f in zip(sorted(set(speeds), reverse=True), found)}


def together(
    settings: Mapping[str, Any],
    speeds: Sequence[float],
    policies: Mapping[str, Mapping[str, Any]],
    single: Mapping[float, float],
    folder: Path,
    prefix: str = "",
) -> list[Row]:
    """The rows of each policy on workers of these speeds, the first one being the baseline.

    Args:
        settings: as `TIMING`.
        speeds: of the workers.
        policies: mode, fetch and delay by label.
        single: what `alone` gave.
        folder: for logs.
        prefix: before each label, in the rows' cases.
    """
    runs = folder / "runs"
    # A run that lies there would go on.
    if first_of_job():
        shutil.rmtree(runs, ignore_errors=True)
    cases = [
        {
            **_shared(settings, speeds),
            "label": f"{prefix}{label}",
            "keep": str((runs / slug(label)).absolute()),
            **policy,
        }
        for label, policy in policies.items()
    ]
    rows: list[Row] = []
    ideal = sum(single[v] for v in speeds)
    baseline = 0.0
    for case, got in zip(cases, several(cases, len(speeds), folder / "together", apart=True)):
        rates = np.array(got["images_per_s"])
        baseline = baseline or float(np.median(rates))
        steps = [settings["batch"] / single[v] for v in speeds]
        cost = RoundCost(steps, got["fetch"], got["exchange_seconds"], case.get("delay", 0))
        rows += _rows(case["label"], got, rates, baseline, ideal, cost, settings["batch"])
    return rows


def slug(label: str) -> str:
    """A policy's label as the name of its run's folder.

    >>> slug("balanced(every(16))"), slug("fetch, balance")
    ('balanced-every-16', 'fetch-balance')
    """
    return "-".join(re.findall(r"\w+", label))


def _shared(settings: Mapping[str, Any], speeds: Sequence[float]) -> dict[str, Any]:
    slow = unequal(speeds, settings["wait"])
    return {**work(), **slow, "batch": settings["batch"], "windows": settings["windows"]}


def _rows(
    label: str,
    got: Mapping[str, Any],
    rates: np.ndarray,
    baseline: float,
    ideal: float,
    cost: RoundCost,
    batch: int,
) -> list[Row]:
    predicted = cost.throughput(batch)
    more = {"fetch": got["fetch"], "exchange_seconds": got["exchange_seconds"]}
    strips = {"busy": got["busy"], "exchanging": got["exchanging"], "predicted_busy": cost.busy.tolist()}
    return [
        row(label, "images_per_s", list(rates), "images/s", predicted=predicted, ideal=ideal, **more),
        row(label, "over_sync", list(rates / baseline), "ratio"),
        row(label, "of_ideal", list(rates / ideal), "fraction", predicted=predicted / ideal),
        row(label, "busy_min", [min(got["busy"])], "fraction", **strips),
        row(label, "utilization", [float(np.mean(got["busy"]))], "fraction"),
        row(label, "predicted", list(predicted / rates), "ratio"),
    ]


# --- figures ----------------------------------------------------------------------------------------


def throughput(ax: Any, rows: Sequence[Row]) -> None:
    """Bars of throughput against that of workers that never wait, each with its deviation and its prediction."""
    from cnnkit.notebook import style

    found = [r for r in rows if r["figure"] == "of_ideal"][::-1]
    at = np.arange(len(found))
    ax.barh(at, [100 * r["value"] for r in found], 0.62, color=style.PALETTE["sky"], label="measured")
    ax.errorbar(
        [100 * r["value"] for r in found], at, xerr=[100 * r["spread"] for r in found],
        color=style.TEXT, linestyle="none", capsize=2, linewidth=1,
    )  # fmt: skip
    ax.plot(
        [100 * r["predicted"] for r in found], at, color=style.PALETTE["vermilion"], linestyle="none", marker="D",
        markersize=5, label="predicted by the cost model",
    )  # fmt: skip
    ax.set_yticks(at, [r["case"] for r in found])
    ax.set_xlim(0, 118)
    ax.axvline(100, color=style.TEXT, linewidth=0.8, linestyle=":")
    for y, r in zip(at, found):
        ax.text(2, y, f"{100 * r['value']:.1f} %", va="center", fontsize=8, color="black")
    style.label(ax, f"throughput (% of workers that never wait), n = {found[0]['n']} windows")
    ax.legend(
        fontsize=8,
        frameon=False,
        labelcolor=style.TEXT,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=2,
    )


def strips(ax: Any, rows: Sequence[Row], speeds: Sequence[float] = ()) -> None:
    """A strip for each worker of each policy: busy, exchanging and waiting, as shares of the time."""
    from cnnkit.notebook import style

    found = [r for r in rows if r["figure"] == "busy_min"]
    colors = {"busy": style.PALETTE["blue"], "exchanging": style.PALETTE["orange"], "waiting": "#d9d9d9"}
    at, names, y = [], [], 0.0
    for r in found:
        for worker, (busy, exchanging) in enumerate(zip(r["busy"], r["exchanging"])):
            left = 0.0
            parts = {"busy": busy, "exchanging": exchanging, "waiting": max(1 - busy - exchanging, 0.0)}
            for word, share in parts.items():
                first = y == 0
                ax.barh(y, 100 * share, 0.8, left=left, color=colors[word], label=word if first else None)
                left += 100 * share
            ax.text(1.5, y, f"{100 * busy:.0f} %", va="center", fontsize=7, color="white")
            at.append(y)
            speed = f", speed {speeds[worker]:g}" if len(speeds) > worker else ""
            names.append(f"{r['case']}: worker {worker}{speed}" if worker == 0 else f"worker {worker}{speed}")
            y += 1
        y += 0.7
    ax.set_yticks(at, names)
    ax.invert_yaxis()
    ax.grid(False)
    ax.set_xlim(0, 100)
    style.label(ax, "share of the time (%)")
    ax.legend(
        fontsize=8,
        frameon=False,
        labelcolor=style.TEXT,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
    )
