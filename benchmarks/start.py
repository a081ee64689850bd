"""What `make start` reaches: its command over several seeds, test accuracy of the last epoch and seconds.

    python -m benchmarks.start --n 10

Writes results/start_cpu.json or start_gpu.json.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

from benchmarks import results
from cnnkit.record.rows import Record

ROOT = Path(__file__).parents[1]


def command() -> list[str]:
    """The options of the training that `make start` runs, without its folder."""
    recipe = subprocess.run(
        ["make", "--no-print-directory", "-n", "start"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = recipe.stdout.replace("\\\n", " ").splitlines()
    words = next(shlex.split(line) for line in lines if "cnnkit train" in line)
    options = words[words.index("train") :]
    at = options.index("--folder")
    return options[:at] + options[at + 2 :]


def main() -> None:
    """Train, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, default=10, help="seeds")
    n = parser.parse_args().n
    last = []
    for seed in range(n):
        with tempfile.TemporaryDirectory() as folder:
            # In a process of its own, as a newcomer does: a second training in one process compiles less.
            typed = [*command(), "--seed", str(seed), "--folder", folder]
            subprocess.run([sys.executable, "-m", "cnnkit", *typed], cwd=ROOT, check=True)
            last.append(Record(folder).epochs()[-1])
    accuracies = [100 * row["test_accuracy"] for row in last]
    rows = [
        results.row("tiny on digits", "accuracy", accuracies, "%", lowest=round(min(accuracies), 2)),
        results.row("tiny on digits", "seconds", [row["train_total"] for row in last], "s"),
        results.row("tiny on digits", "compile_seconds", [row["compile_total"] for row in last], "s"),
    ]
    print(results.write(f"start_{jax.devices()[0].platform}", rows))


if __name__ == "__main__":
    main()
