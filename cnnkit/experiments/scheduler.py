"""The scheduler: what may run at once in a network's step, what that gains, and what queues and pools save."""

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cnnkit.experiments import job, tasks
from cnnkit.experiments.axes import decades
from cnnkit.experiments.base import Experiment, Row, row

POOLS, THREADS = "queues and pools", "a thread per task"


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Analyse and time a step of each network, then tasks of each size."""
    rows = []
    for name, shape in settings["nets"].items():
        rows += parallelism(name, tuple(shape), settings["batch"], settings["threads"], settings["n"])
    return rows + sized(settings["sizes"], settings["threads"], settings["n"])


def parallelism(name: str, shape: tuple[int, ...], batch: int, threads: int, n: int) -> list[Row]:
    """What a step's graph allows by its operations' measured times, and what so many threads make of it."""
    from cnnkit.graph import Scheduler, analyse, evaluate, measure

    graph, feeds = step(name, shape, batch)
    costs = measure(graph, feeds, n)
    found = analyse(graph, costs)
    rows = [
        row(name, figure, [value], unit)
        for figure, value, unit in (
            ("operations", len(graph), ""),
            ("levels", len(found.levels), ""),
            ("width", found.width, ""),
            ("work", 1000 * found.work, "ms"),
            ("critical_path", 1000 * found.critical, "ms"),
            ("allowed", found.speedup, "×"),
        )
    ]
    with Scheduler({"compute": threads}) as scheduler:
        one, many = (lambda: evaluate(graph, feeds)), (lambda: scheduler.run(graph, feeds))
        many()
        gains = [seconds(one) / seconds(many) for _ in range(n)]
    return [*rows, row(name, "speedup", gains, "×", threads=threads)]


def step(name: str, shape: tuple[int, ...], batch: int) -> tuple[Any, dict[str, Any]]:
    """The graph of a network's training step on noise, and what it is fed."""
    import jax
    import jax.numpy as jnp

    from cnnkit.graph import from_net
    from cnnkit.losses import cross_entropy

    net = job.network(name)
    params, state, _ = net.init(jax.random.key(0), shape)
    loss = lambda y, labels: cross_entropy(y, labels).mean()
    graph = from_net(net, shape, batch, loss, update=lambda weight, gradient: weight - 0.01 * gradient)
    x = jax.random.normal(jax.random.key(1), (batch, *shape))
    return graph, graph.feeds(params, state, x, jnp.arange(batch) % 10, jax.random.key(2))


def sized(sizes: list[float], threads: int, n: int) -> list[Row]:
    """Microseconds an operation, by its work, in queues and pools and in a thread per task; and the ratio."""
    from cnnkit.graph import Scheduler

    rows, rate = [], tasks.hash_rate()
    with Scheduler({"cpu": threads}) as scheduler:
        for size in sizes:
            count = max(40, min(400, int(2e5 / max(size, 1.0))))
            graph = tasks.random_graph(count, tasks.work(size, rate) if size else _nothing)
            peer = tasks.ThreadPerTask(graph)
            pools = functools.partial(scheduler.run, graph)
            ways: dict[str, Callable[[], object]] = {POOLS: pools, THREADS: peer.run}
            for way in ways.values():
                way()
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(n):
                for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
                    taken[name].append(1e6 * seconds(ways[name]) / count)
            case = f"{size:g} µs of work"
            rows += [row(case, name, taken[name], "µs", size=size) for name in ways]
            ratios = [b / a for a, b in zip(taken[POOLS], taken[THREADS], strict=True)]
            rows.append(row(case, "ratio", ratios, "×", size=size))
    return rows


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def figure(rows: list[Row]) -> Any:
    """The speed-up that each network's graph allows, and the one measured; an operation's time by its work."""
    import numpy as np

    from cnnkit.notebook import style

    picture, axes = style.figure(7.0, 2.9, columns=2)
    for i, (name, words) in enumerate({"allowed": "allowed by the graph", "speedup": "measured"}.items()):
        found = [r for r in rows if r["figure"] == name]
        at = np.arange(len(found)) + 0.36 * (i - 0.5)
        spread = [r["spread"] for r in found]
        axes[0].barh(
            at, [r["value"] for r in found], 0.34, xerr=spread, color=style.COLORS[i], label=words, capsize=2
        )
    axes[0].set_yticks(range(len(found)), [r["case"] for r in found], fontsize=8)
    axes[0].invert_yaxis()
    axes[0].axvline(1, color="black", linewidth=0.8)
    style.label(axes[0], "speed-up over one operation after the other (×)")
    style.legend(axes[0], loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    shown = [r for r in rows if r.get("size")]
    for i, name in enumerate((POOLS, THREADS)):
        found = [r for r in shown if r["figure"] == name]
        axes[1].errorbar(
            [r["size"] for r in found], [r["value"] for r in found], [r["spread"] for r in found],
            color=style.COLORS[i], linestyle=style.LINES[i], marker="o", markersize=3, capsize=2, label=name,
        )  # fmt: skip
    decades(axes[1], [r["size"] for r in shown])
    decades(axes[1], [r["value"] for r in shown if r["figure"] != "ratio"], "y")
    style.label(axes[1], "work of an operation (µs)", "time an operation (µs)")
    style.legend(axes[1], loc="upper left")
    return picture


def _nothing(*inputs: object) -> int:
    return len(inputs)


NETS = {"lenet": (28, 28, 1), "inception_cifar10": (32, 32, 3)}

EXPERIMENT = Experiment(
    name="scheduler",
    title="What may run at once in a network's step, and what queues and pools save",
    source="thesis, section 5.4",
    presets={
        "smoke": {"nets": {"linear": (4, 4, 1)}, "batch": 2, "threads": 2, "sizes": [0, 100], "n": 2},
        "small": {
            "nets": NETS, "batch": 16, "threads": 2, "sizes": [0, 10, 30, 100, 300, 1000, 3000, 10_000], "n": 5,
        },
        "full": {
            "nets": NETS, "batch": 64, "threads": 2, "sizes": [0, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000], "n": 9,
        },
    },
    run=run,
    figure=figure,
    note=(
        "allowed: work over critical path, by the measured times of the operations, the exchanges left out as nothing is "
        "sent; speedup: one operation after the other against the scheduler with so many threads for computing, which can be "
        "more than allowed where an operation takes less time beside others than alone. XLA "
        "spreads large operations over the cores by itself, so that on a CPU little is left to gain."
    ),
)  # fmt: skip
