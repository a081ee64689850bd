"""Warm start: short periods early and long ones later, against constant periods."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnkit.experiments import accuracy
from cnnkit.experiments.axes import decades
from cnnkit.experiments.base import Experiment, Row


def policies(settings: Mapping[str, Any]) -> dict[str, str]:
    """The policies compared: constant periods, and one that grows over ``grow`` epochs."""
    periods, grow = settings["periods"], settings["grow"]
    first, last = min(periods), max(periods)
    constant = {f"every({k})": f"every({k})" for k in periods}
    return {**constant, f"warm_start({first}, {last})": f"warm_start({first}, {last}, epochs={grow})"}


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Train with constant periods and with warm start, at the same number of examples."""
    return accuracy.compare(settings, policies(settings), folder)


def figure(rows: list[Row]) -> Any:
    """The curves of each mode, and what each policy's accuracy cost in exchanges."""
    from cnnkit.notebook import style

    modes = accuracy.modes(rows)
    picture, axes = style.figure(7.0, 5.4, rows=2, columns=2)
    for ax, mode in zip(axes, modes):
        accuracy.draw(ax, rows, mode)
    for ax in axes[len(modes) : 2]:
        ax.set_visible(False)
    early = accuracy.value(rows, rows[0]["case"], "early_accuracy")["epoch"]
    against_exchanges(axes[2], rows, "early_accuracy", f"test accuracy after {early} epochs (%)")
    against_exchanges(axes[3], rows, "accuracy", "last test accuracy (%)")
    return picture


def against_exchanges(ax: Any, rows: list[Row], name: str, label: str) -> None:
    """An accuracy against the number of exchanges, a mark a policy, a line a mode."""
    from cnnkit.notebook import style

    for i, mode in enumerate(accuracy.modes(rows)):
        found = [r for r in rows if r["figure"] == name and r["case"].startswith(f"{mode} ")]
        points = []
        for r in found:
            warm = "warm" in r["case"]
            count = accuracy.value(rows, r["case"], "exchanges")["value"]
            points += [] if warm else [(count, r["value"])]
            ax.errorbar(
                [count], [r["value"]], [r["spread"]], color=style.COLORS[i], linestyle="none", capsize=2,
                marker="*" if warm else "o", markersize=9 if warm else 4, label=f"{mode}, warm start" if warm else None,
            )  # fmt: skip
        constant = f"{mode}, constant k"
        ax.plot(
            *zip(*sorted(points)),
            color=style.COLORS[i],
            linestyle=style.LINES[i],
            linewidth=1.2,
            label=constant,
        )
    decades(ax, [r["value"] for r in rows if r["figure"] == "exchanges"])
    style.label(ax, "exchanges in all", label)
    style.legend(ax, loc="lower right")


def _settings(preset: str, training: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **training,
        "modes": ["accumulate"] if preset == "smoke" else ["local", "accumulate"],
        "periods": [1, 8] if preset == "smoke" else [1, 8, 32],
        "grow": training["epochs"] / 2,
        "early": 3,
    }


EXPERIMENT = Experiment(
    name="warm_start",
    title="Warm start against constant periods",
    source="thesis, section 5.3.4",
    presets={preset: _settings(preset, training) for preset, training in accuracy.TRAINING.items()},
    run=run,
    figure=figure,
    shown=("early_accuracy", "accuracy", "exchanges"),
    note=(
        "Accuracy is of the last epoch, over seeds; early_accuracy of the third. Warm start grows k from the "
        "shortest to the longest period over the first half of the training, at one learning rate."
    ),
)
