"""Whole trainings on one device: test accuracy after the last epoch, and the seconds that they took.

    python -m benchmarks.accuracy_time --n 3      # LeNet on MNIST; accuracy_time_cpu.json or accuracy_time_gpu.json

Rates and epochs were set beforehand, not chosen by the test set.
"""

import argparse

import jax

import cnnkit as ck
from benchmarks import results
from cnnkit.train.report import Lines


def lenet(seed: int, epochs: int) -> ck.Run:
    """One training of LeNet on MNIST."""
    optimizer = ck.optim.sgd(ck.optim.one_cycle(0.05), momentum=0.9, nesterov=True)
    data = ck.load("mnist")
    run = ck.Run(
        ck.nets.lenet(), data, batch=128, epochs=epochs, seed=seed, optimizer=optimizer, watch=Lines()
    )
    return run.fit()


def main() -> None:
    """Train and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=3, help="seeds")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    runs = [lenet(seed, arguments.epochs) for seed in range(arguments.n)]
    seconds = [run.clocks.seconds for run in runs]
    last = [100 * run.history[-1]["test_accuracy"] for run in runs]
    rows = [
        results.row("lenet", "accuracy", last, "%", epochs=arguments.epochs),
        results.row("lenet", "seconds", [s["train"] + s["evaluate"] for s in seconds], "s"),
        results.row("lenet", "compile_seconds", [s["compile"] for s in seconds], "s"),
    ]
    print(*rows, sep="\n")
    print(results.write(f"accuracy_time_{jax.default_backend()}", rows))


if __name__ == "__main__":
    main()
