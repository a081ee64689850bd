"""Whole trainings on one device: test accuracy after the last epoch, and the seconds that they took.

    python -m benchmarks.accuracy_time --n 3                       # LeNet on MNIST
    python -m benchmarks.accuracy_time --nets fast94 --n 50        # CIFAR-10 to 94 %, one compilation for all
    python -m benchmarks.accuracy_time --nets fast96 --n 10
    python -m benchmarks.accuracy_time --first lenet fast94        # from a network to its first step done
    python -m benchmarks.accuracy_time --first lenet --options xla_gpu_enable_triton_gemm=False --dry
    python -m benchmarks.accuracy_time --nets fast94 --set epochs=7 lr=0.2 --n 5 --dry

Rates and epochs were set beforehand, not chosen by the test set. Of the fast networks the seconds are those
from the drawing of the weights to the last answer, all by the clock on the wall. A first step is measured in a
process of its own with an empty compile cache, and in a second one with what the first has left there.
Writes results/accuracy_time_cpu.json or accuracy_time_gpu.json, and draws the .png beside it; rows of other cases stay.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import results
from cnnkit.layers import compiled


def main() -> None:
    """Train and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nets", nargs="*", default=["lenet"], help="lenet, fast94, fast96")
    parser.add_argument("--n", type=int, default=3, help="seeds")
    parser.add_argument("--epochs", type=int, default=10, help="of lenet")
    parser.add_argument("--first", nargs="*", default=[], help="networks whose first step is measured")
    parser.add_argument("--options", nargs="*", default=[], help="compiler options of a first step on a GPU")
    parser.add_argument("--set", nargs="*", default=[], help="settings of a fast network, as name=value")
    parser.add_argument("--take", type=int, help="training images, all when left out")
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        compiled.GPU.update(_setting(text) for text in options.options)
        return print(json.dumps(first_step(options.serve, options.take)))
    found = []
    for net in options.first:
        found.append(first_steps(net, options.take, options.options))
    if not options.first:
        for net in options.nets:
            found.append(lenet(options) if net == "lenet" else fast(net, options))
    name = f"accuracy_time_{_backend()}"
    for rows in found:
        print(*({k: v for k, v in row.items() if k != "found"} for row in rows), sep="\n", flush=True)
        if not options.dry:
            print(results.update(name, rows))
    if not options.dry and not options.first:
        from benchmarks import figures

        print(figures.draw(name))
    return None


def _backend() -> str:
    import jax

    return jax.default_backend()


def lenet(options: argparse.Namespace) -> list[dict]:
    """LeNet on MNIST, a run a seed."""
    import cnnkit as ck
    from cnnkit.train.report import Lines

    data, runs = ck.load("mnist").take(train=options.take), []
    for seed in range(options.n):
        optimizer = ck.optim.sgd(ck.optim.one_cycle(0.05), momentum=0.9, nesterov=True)
        net, settings = ck.nets.lenet(), {"batch": 128, "epochs": options.epochs, "seed": seed}
        runs.append(ck.Run(net, data, optimizer=optimizer, watch=Lines(), **settings).fit())
    seconds = [run.clocks.seconds for run in runs]
    last = [100 * run.history[-1]["test_accuracy"] for run in runs]
    return [
        results.row("lenet", "accuracy", last, "%", epochs=options.epochs),
        results.row("lenet", "seconds", [s["train"] + s["evaluate"] for s in seconds], "s"),
        results.row("lenet", "compile_seconds", [s["compile"] for s in seconds], "s"),
    ]


def fast(net: str, options: argparse.Namespace) -> list[dict]:
    """A fast network on CIFAR-10, one run again and again."""
    import jax
    import numpy as np

    import cnnkit as ck
    from cnnkit.experiments import fast_cifar10

    changes = dict(_setting(text) for text in options.set)
    data = ck.load("cifar10").take(train=options.take)
    run = fast_cifar10.recipe(net, data, **changes)
    accuracy, seconds, compiling = fast_cifar10.timed(run, options.n)
    percent = [100 * a for a in accuracy]
    told: dict[str, Any] = {"settings": fast_cifar10.RECIPES[net] | changes}
    return [
        results.row(
            net, "accuracy", percent, "%", mean=float(f"{np.mean(percent):.5g}"),
            found=[round(p, 2) for p in percent], **told,
        ),
        results.row(net, "seconds", seconds, "s", found=[round(s, 4) for s in seconds]),
        # What another process has compiled says nothing about compiling.
        *([] if jax.config.jax_compilation_cache_dir else [results.row(net, "compile_seconds", [compiling], "s")]),
    ]  # fmt: skip


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def first_steps(net: str, take: int | None, options: Sequence[str] = ()) -> list[dict]:
    """First steps in two processes, one after another, with one compile cache."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        command = [sys.executable, "-m", "benchmarks.accuracy_time", "--serve", net]
        command += ["--take", str(take)] if take else []
        command += ["--options", *options] if options else []
        said = [
            subprocess.run(command, env=os.environ | cache, stdout=subprocess.PIPE, text=True, check=True)
            for _ in range(2)
        ]
    net = " ".join([net, *options])
    cold, warm = (json.loads(done.stdout.splitlines()[-1]) for done in said)
    return [
        results.row(net, "first_step_seconds", [cold], "s"),
        results.row(net, "first_step_again_seconds", [warm], "s"),
    ]


def first_step(net: str, take: int | None) -> float:
    """Seconds from a network and data in memory to the first step done: drawn, traced, compiled, taken."""
    import jax

    import cnnkit as ck
    from cnnkit.experiments import fast_cifar10

    jax.block_until_ready(jax.numpy.zeros(1))  # the device itself is started
    data = ck.load("mnist" if net == "lenet" else "cifar10").take(train=take)

    took: list[float] = []

    class Stop:  # not one of the plain watchers, behind whose back the next epoch would begin
        def begin(self, run: Any) -> None: ...
        def row(self, run: Any, row: Any) -> None: ...
        def end(self, run: Any, why: str) -> None: ...
        def tick(self, run: Any) -> None:
            took.append(time.perf_counter() - begin)
            run.stop()

    begin = time.perf_counter()
    if net == "lenet":
        run = ck.Run(ck.nets.lenet(), data, epochs=2)
    else:
        run = fast_cifar10.recipe(net, data)
    run.watch = Stop()
    run.fit()
    return took[0]


if __name__ == "__main__":
    main()
