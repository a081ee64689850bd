"""What scheduling costs: queues and thread pools beside a thread for each task, and beside Dask.

    python -m benchmarks.scheduler

Empty operations show the cost of scheduling alone. Operations of 10 µs to 10 ms of work (SHA-256, which
runs without the interpreter's lock, as JAX's work does) show how much of the two cores is left for it, and
from which size on it does not matter how an operation gets its thread.
"""

import statistics
import time
from collections.abc import Callable

from benchmarks.results import in_turn, row, write
from cnnkit.experiments.tasks import ThreadPerTask, hash_rate, random_graph, work
from cnnkit.graph import Graph, Scheduler, analyse

SIZES_US = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000)
REPEATS = 7
CORES = 2
THREAD_PER_TASK = "a thread per task"


def per_op(run: Callable[[], object], n: int) -> Callable[[], float]:
    """Microseconds of wall time an operation."""

    def measure() -> float:
        start = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - start) / n

    return measure


def dask_of(graph: Graph, threads: int) -> Callable[[], object]:
    """The same graph for Dask's threaded scheduler."""
    from concurrent.futures import ThreadPoolExecutor

    import dask
    from dask.threaded import get

    tasks = {name: (op.run, *op.inputs) for name, op in graph.ops.items()}
    pool = ThreadPoolExecutor(threads)

    def run() -> object:
        with dask.config.set(pool=pool):
            return get(tasks, list(graph.outputs))

    return run


def empty_rows(scheduler: Scheduler) -> list[dict]:
    """The cost of scheduling an operation that does nothing."""
    rows = []
    nothing = lambda *inputs: len(inputs)
    cases = {"one queue": ("cpu",), "five queues": ("cpu", "compute", "copy_in", "copy_out", "network")}
    for case, resources in cases.items():
        graph = random_graph(500, nothing, resources)
        ours, peer = (lambda g=graph: scheduler.run(g)), ThreadPerTask(graph)
        dask = dask_of(graph, CORES)
        for run in (ours, peer.run, dask):
            run()
        found = in_turn(
            {"ours": per_op(ours, 500), "thread": per_op(peer.run, 500), "dask": per_op(dask, 500)},
            3 * REPEATS,
        )
        for name, values in ((THREAD_PER_TASK, found["thread"]), ("Dask threaded", found["dask"])):
            rows.append(
                row(
                    f"empty operations, {case}",
                    "us_per_op",
                    found["ours"],
                    "us",
                    peer=name,
                    peer_values=values,
                    less_is_better=True,
                )
            )
    rows.append(
        row("empty operations, stream", "us_per_op", [stream(scheduler) for _ in range(REPEATS)], "us")
    )
    return rows


def stream(scheduler: Scheduler, items: int = 500) -> float:
    """Microseconds an operation of a chain of six through which items flow, four in flight."""
    graph = Graph("chain", inputs=["x"])
    blob = "x"
    for i, on in enumerate(("cpu", "cpu", "cpu", "copy_in", "compute", "cpu")):
        blob = graph.add(f"a{i}", lambda v: v, blob, on=on, wait=False)
    start = time.perf_counter()
    for _ in scheduler.stream(graph, range(items), depth=4):
        pass
    return 1e6 * (time.perf_counter() - start) / (items * len(graph))


def sized_rows(scheduler: Scheduler, rate: float) -> list[dict]:
    """Wall time an operation, and the part of the time two cores need at least, by the operations' size."""
    rows, ratios = [], {}
    for size in SIZES_US:
        n = max(60, min(500, int(4e5 / size)))
        run = work(size, rate)
        graph = random_graph(n, run)
        peer, alone = ThreadPerTask(graph), per_op(lambda run=run, n=n: [run() for _ in range(n)], n)
        ours = lambda graph=graph: scheduler.run(graph)
        ours(), peer.run()
        found = in_turn({"ours": per_op(ours, n), "peer": per_op(peer.run, n), "alone": alone}, REPEATS)
        single = statistics.median(found["alone"])
        levels = analyse(graph, dict.fromkeys(graph.ops, single))
        least = levels.bound({"cpu": CORES}) / n
        case = f"{size / 1000:g} ms of work" if size >= 1000 else f"{size} us of work"
        rows.append(
            row(
                case,
                "us_per_op",
                found["ours"],
                "us",
                peer=THREAD_PER_TASK,
                peer_values=found["peer"],
                less_is_better=True,
            )
        )
        rows.append(
            row(
                case,
                "of_max",
                [least / v for v in found["ours"]],
                "fraction",
                peer=THREAD_PER_TASK,
                peer_values=[least / v for v in found["peer"]],
                work_us=round(single, 2),
            )
        )
        ratios[size] = rows[-2]["ratio"]
    above = max((size for size, ratio in ratios.items() if ratio >= 1.05), default=0)
    small = [size for size in SIZES_US if size > above]
    if small:
        rows.append(row("a thread per task costs under 5 %", "from_us_of_work", [min(small)], "us"))
    return rows


def main() -> None:
    rate = hash_rate()
    with Scheduler({"cpu": CORES}) as scheduler:
        rows = empty_rows(scheduler) + sized_rows(scheduler, rate)
    for made in rows:
        peer = f"  {made['peer']} {made['peer_value']} ratio {made['ratio']}" if "peer" in made else ""
        print(
            f"{made['case']:36} {made['figure']:16} {made['value']} ± {made['spread']} {made['unit']}{peer}"
        )
    print(write("scheduler_cpu", rows, packages=("dask",)))


if __name__ == "__main__":
    main()
