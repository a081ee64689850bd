"""Load balancing: on workers of unequal speed, equal periods against periods shared out by speed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnkit.experiments import balance
from cnnkit.experiments.base import Experiment, Row


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Time synchronous, fixed and balanced rounds on each set of speeds."""
    steps = settings["steps"]
    policies = {
        "synchronous": {"mode": "accumulate", "fetch": 1},
        f"every({steps})": {"fetch": steps},
        f"balanced(every({steps}))": {"fetch": f"balanced(every({steps}))"},
    }
    single = balance.alone(settings, [v for speeds in settings["speeds"] for v in speeds], folder)
    rows = []
    for speeds in settings["speeds"]:
        name = ":".join(f"{v:g}" for v in speeds)
        rows += balance.together(
            settings, speeds, policies, single, folder / name.replace(":", "-"), f"{name} "
        )
    return rows


def figure(rows: list[Row]) -> Any:
    """Throughput of every case, and the last speeds' busy fractions, worker by worker."""
    from cnnkit.notebook import style

    cases = list(dict.fromkeys(r["case"] for r in rows))
    last = cases[-1].partition(" ")[0]
    # Without the speeds, which the strips' own names tell.
    shown = [r | {"case": r["case"].partition(" ")[2]} for r in rows if r["case"].startswith(f"{last} ")]
    workers = len(next(r["busy"] for r in shown if "busy" in r))
    heights = [0.8 + 0.24 * len(cases), 0.8 + 0.17 * 3 * (workers + 0.7)]
    picture, axes = style.figure(7.0, sum(heights), rows=2, height_ratios=heights)
    balance.throughput(axes[0], rows)
    balance.strips(axes[1], shown, [float(v) for v in last.split(":")])
    return picture


SPEEDS = [[1, 0.7], [1, 0.5], [1, 0.5, 0.33, 0.25]]

EXPERIMENT = Experiment(
    name="load_balance",
    title="Load balancing on unequal workers",
    source="thesis, sections 5.3.3 and 5.6.1",
    presets={
        "smoke": {**balance.TIMING["smoke"], "speeds": [[1, 0.5]]},
        "small": {**balance.TIMING["small"], "speeds": SPEEDS},
        "full": {**balance.TIMING["full"], "speeds": SPEEDS[:2]},
    },
    run=run,
    figure=figure,
    shown=("over_sync", "of_ideal", "busy_min", "predicted"),
    note=(
        "of_ideal is the throughput over the sum of what each worker does alone; predicted is what the cost model "
        "says from those speeds and the measured exchange, over the measurement. On CPU a step's time is mostly "
        "waiting, since there are fewer cores than workers; on GPUs slow workers do their work over again. "
        "Exchanges are timed in rounds that look at the clock, where they take longer than among many rounds in one "
        "program: synchronous rounds can beat their prediction."
    ),
)
