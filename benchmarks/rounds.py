"""Rounds measured: unequal workers beside what the cost model predicts, and accuracy against the period.

python -m benchmarks.rounds unequal              rounds_unequal_cpu.json or rounds_unequal_gpu.json
python -m benchmarks.rounds accuracy             fetch_accuracy.json; MNIST, three seeds; rows of other cases stay
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WARM = 3.0
MODULE = "benchmarks.rounds"


class Clocked:
    """Watches a run: notes seconds and examples at every tick, and stops it when its windows are over.

    Args:
        seconds: of a window.
        n: windows, one after another.
        warm: seconds of training before the first.
    """

    def __init__(self, seconds: float = 1e9, n: int = 1, warm: float = WARM) -> None:
        self.seconds, self.n, self.warm = seconds, n, warm
        self.marks: list[tuple[float, float, int]] = []

    def begin(self, run: Any) -> None: ...

    def tick(self, run: Any) -> None:
        now = (run.clocks.seconds["train"], run.epochs_done * len(run.data), len(run.record))
        due = self.warm if not self.marks else self.marks[-1][0] + self.seconds
        # Speeds are first known in the third round.
        if now[0] >= due and (self.marks or run.engine.round >= 3):
            self.marks.append(now)
            if len(self.marks) > self.n:
                run.stop()

    def row(self, run: Any, row: Any) -> None: ...

    def end(self, run: Any, why: str) -> None: ...

    def images_per_s(self) -> list[float]:
        return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(self.marks)]

    def rows(self, run: Any) -> list[dict[str, Any]]:
        rows = run.record.rows[self.marks[0][2] : self.marks[-1][2]]
        return [r for r in rows if r["kind"] == "rounds"]


def augmented(net: str) -> Any:
    """What the net's training images go through: CUDA-CNN's CIFAR-10 net takes flipped 24×24 crops."""
    from cnnkit import augment

    return augment.chain(augment.crop(24), augment.flip()) if net == "cuda_cnn_cifar10" else None


def measure(make_net: Any, data: Any, batch: int, n: int, seconds: float, **settings: Any) -> dict[str, Any]:
    """One run in n windows: images a second, each worker's busy fraction, times of steps and exchanges."""
    from cnnkit.train import optim
    from cnnkit.train.run import Run

    watch = Clocked(seconds, n)
    optimizer = optim.sgd(1e-4, momentum=0.9)  # the images are noise: nothing is to be learned
    run = Run(
        make_net(), data, batch=batch, epochs=10_000, judge=(), watch=watch, optimizer=optimizer, **settings
    )
    run.fit()
    found: dict[str, Any] = {"images_per_s": watch.images_per_s(), "workers": run.engine.workers}
    found |= {"fetch": None, "step_seconds": None, "exchange_seconds": None}
    rows = watch.rows(run)
    if rows:
        took = np.array([r["seconds"] for r in rows])
        shares = np.array([[b or 0.0 for b in r["busy"]] for r in rows])
        fetched = [tuple(r["fetch"]) for r in rows]
        found["busy"] = ((shares * took[:, None]).sum(0) / took.sum()).tolist()
        found["fetch"] = list(max(set(fetched), key=fetched.count))
        found |= {k: rows[-1][k] for k in ("step_seconds", "exchange_seconds")}
    return found


def synthetic(n: int, shape: tuple[int, ...] = (32, 32, 3)) -> Any:
    """Noise images with random labels: work without a lesson."""
    from cnnkit.data import from_arrays

    random, distinct = np.random.default_rng(0), min(n, 20_000, 300_000_000 // int(np.prod(shape)))
    images = np.resize(random.integers(0, 256, (distinct, *shape), np.uint8), (n, *shape))
    labels = random.integers(0, 10, n).astype(np.int32)
    return from_arrays(images, labels, images[:500], labels[:500], name="noise")


def predicted(found: dict, batch: int, delay: int, step_seconds: Any = None, exchange: Any = None) -> float:
    """Images a second by the cost model, from step and exchange times measured on their own."""
    from cnnkit.parallel.cost import RoundCost

    step = found["step_seconds"] if step_seconds is None else step_seconds
    cost = RoundCost(step, found["fetch"], found["exchange_seconds"] if exchange is None else exchange, delay)
    return cost.throughput(batch)


# --- unequal workers --------------------------------------------------------------------------------


def unequal_cases(gpu: bool) -> dict[str, dict[str, Any]]:
    """Names and settings of the runs on unequal workers: on a GPU steps are short, and rounds have more of them."""
    period = 64 if gpu else 32
    return {
        "synchronous": {"mode": "accumulate", "fetch": 1},
        f"every({period})": {"fetch": period},
        "balanced": {"fetch": f"balanced(every({period}))"},
        "balanced delay": {"fetch": f"balanced(every({period}))", "delay": 1},
    }


STEP = 0.02  # seconds a step waits at speed 1, on CPU


def unequal_part(
    speeds: tuple[float, ...], cases: list[str], n: int, seconds: float, gpu: bool
) -> dict[str, Any]:
    """The cases on workers of these speeds, over all processes of this job."""
    from cnnkit import nets
    from cnnkit.layers import dense, serial
    from cnnkit.parallel.emulate import emulate

    if gpu:
        data, make = synthetic(400_000), lambda: nets.cuda_cnn_cifar10(10)
        emulated = emulate(speeds) if min(speeds) < 1 else None
    else:
        data, make = synthetic(200_000, (4, 4, 1)), lambda: serial(dense(10))
        emulated = emulate([v / (1 + v) for v in speeds], waits=True, step_seconds=STEP)
    found = {}
    for case in cases:
        settings = unequal_cases(gpu).get(case, {"fetch": 16, "momentum": "reset"})
        workers = {
            "workers": len(speeds),
            "emulate": emulated,
            "augment": augmented("cuda_cnn_cifar10") if gpu else None,
        }
        found[case] = measure(make, data, 128, n, seconds, **workers, **settings)
    return found


def speed_alone(speed: float, options: list[str]) -> float:
    """Images a second of one worker of this speed with nobody to wait for."""
    found = apart(MODULE, ["unequal_part", "--speeds", str(speed), "--cases", "alone", *options])
    return float(np.median(found["alone"]["images_per_s"]))


def unequal(gpus: int, n: int, seconds: float, groups: Sequence[tuple[float, ...]] = ()) -> None:
    """Throughput on workers of unequal speed: synchronous, fixed periods, balanced, balanced with delay.

    On CPU a worker is a process and its work is waiting, STEP seconds a step at speed 1, since there are
    fewer cores than workers; on GPUs slow workers do their work over again. Ideal is the sum of the workers'
    speeds with nobody to wait for, one sum for all cases: each alone, or on GPUs by its steps in balanced rounds.
    """
    from benchmarks.results import row, update

    rows, gpu = [], gpus > 0
    usual = ((1, 0.5), (1, 0.7), (1, 0.5, 0.33, 0.25))
    for speeds in groups or [speeds for speeds in usual if not gpu or len(speeds) <= gpus]:
        options = ["--n", str(n), "--seconds", str(seconds)]
        name = ":".join(f"{s:g}" for s in speeds)
        alone = sum(speed_alone(s, options) for s in speeds) if not gpu else None
        runs = unequal_cases(gpu)
        cases = ["--speeds", ",".join(map(str, speeds)), "--cases", ",".join(runs)]
        found = apart(MODULE, ["unequal_part", *cases, *options], processes=1 if gpu else len(speeds))
        # In the order of the runs: synchronous, and with as many steps for each.
        sync, equal = (float(np.median(found[case]["images_per_s"])) for case in list(runs)[:2])
        ideal = alone or float((128 / np.array(found["balanced"]["step_seconds"])).sum())
        for case, got in found.items():
            delay = runs[case].get("delay", 0)
            rates = np.array(got["images_per_s"])
            label, extra = f"{name} {case}", {"work": "real" if gpu else "waiting", "fetch": got["fetch"]}
            rows += [
                row(label, "images_per_s", list(rates), "images/s", **extra),
                row(label, "busy_min", [float(min(got["busy"]))], "fraction", **extra),
                row(label, "over_sync", list(rates / sync), "ratio", **extra),
                row(label, "over_equal", list(rates / equal), "ratio", **extra),
                row(label, "of_ideal", list(rates / ideal), "fraction", **extra),
                row(label, "predicted", list(predicted(got, 128, delay) / rates), "ratio", **extra),
            ]
            show(rows[-6:])
        path = update(f"rounds_unequal_{'gpu' if gpu else 'cpu'}", rows, folder=out_folder())
    print(path)


def apart(module: str, arguments: list[str], processes: int = 1, gpus: bool = False) -> Any:
    """A module as a job of its own, of one process or several; what it found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", module, *arguments, "--found", str(path)]
        if processes == 1:
            subprocess.run(command, check=True)
        else:
            from cnnkit.lab.launch import launch

            launch(command, processes, gpus=gpus, show=False)
        return json.loads(path.read_text())


# --- accuracy against the period --------------------------------------------------------------------


def accuracy(epochs: int, seeds: int, workers: int, cases: list[str]) -> None:
    """MNIST by LeNet at the same number of examples: test accuracy after the last epoch for each period."""
    from benchmarks.results import row, update
    from cnnkit import nets
    from cnnkit.data import load
    from cnnkit.train import optim
    from cnnkit.train.run import Run

    data = load("mnist")
    policies: dict[str, Any] = {f"every({k})": k for k in (1, 2, 4, 8, 16, 32)}
    policies["warm_start(1, 8)"] = f"warm_start(1, 8, epochs={epochs / 3:.3g})"
    policies["warm_start(1, 32)"] = f"warm_start(1, 32, epochs={epochs / 2:.3g})"
    rows, curves = [], {}
    for mode in ("local", "accumulate"):
        for label, fetch in policies.items():
            if cases and f"{mode} {label}" not in cases:
                continue
            found = []
            for seed in range(seeds):
                run = Run(
                    nets.lenet(10),
                    data,
                    batch=64,
                    epochs=epochs,
                    seed=seed,
                    workers=workers,
                    mode=mode,
                    fetch=fetch,
                    optimizer=optim.sgd(optim.cosine(0.02, warmup=0.5), momentum=0.9),
                    watch=Clocked(),
                )
                run.fit()
                found.append([r["test_accuracy"] for r in run.history])
            curves[f"{mode} {label}"] = np.mean(found, 0).tolist()
            last = [100 * f[-1] for f in found]
            rows.append(
                row(
                    f"{mode} {label}",
                    "accuracy",
                    last,
                    "%",
                    workers=workers,
                    epochs=epochs,
                    curve=curves[f"{mode} {label}"],
                )
            )
            show(rows[-1:])
            path = update("fetch_accuracy", rows, folder=out_folder())
    print(path)


# --- the command ------------------------------------------------------------------------------------


def show(rows: list[dict[str, Any]]) -> None:
    for r in rows:
        print(
            f"{r['case']:<34} {r['figure']:<14} {r['value']:>10} ± {r['spread']:<9} {r['unit']}", flush=True
        )


def out_folder() -> Path:
    from benchmarks.results import FOLDER

    return Path(os.environ.get("CNNKIT_RESULTS", FOLDER))


def main() -> None:
    from benchmarks.results import numbers

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["unequal", "unequal_part", "accuracy"])
    parser.add_argument("--n", type=int, default=3, help="measured windows, or seeds")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a measured window")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--speeds",
        type=numbers(float),
        default=[],
        help="of the workers, with commas; else all that are usual",
    )
    parser.add_argument(
        "--cases", default="", help="of accuracy, with semicolons: 'local every(8);…'; else all"
    )
    parser.add_argument("--found", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what == "unequal":
        from cnnkit.lab import environment

        # Asked without JAX, which would take the GPUs' memory from the processes that measure.
        groups = [tuple(args.speeds)] if args.speeds else []
        unequal(len(environment.gpus()), args.n, args.seconds, groups)
        return
    from cnnkit.parallel import workers

    workers.join()
    import jax

    begin = time.perf_counter()
    if args.what == "unequal_part":
        speeds = tuple(args.speeds)
        gpu = jax.default_backend() == "gpu"
        found = unequal_part(speeds, args.cases.split(","), args.n, args.seconds, gpu)
    else:
        jax.config.update("jax_num_cpu_devices", args.workers)
        accuracy(args.epochs, args.n, args.workers, args.cases.split(";") if args.cases else [])
    if args.found and jax.process_index() == 0:
        Path(args.found).write_text(json.dumps(found))
    print(f"{args.what}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
