"""Throughput on one GPU and on several over NVLink, a process a GPU, each figure beside what the cost model predicts.

python -m benchmarks.scaling                         scaling_gpu2.json, or of as many GPUs as there are
python -m benchmarks.scaling --gpus 1,2,4,8 --nets googlenet,resnet18

Batch 128 a GPU; of linear is the part of so many times one GPU's images a second.
"""

import argparse
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.link import LINK_CASES, MODULE
from benchmarks.results import row
from benchmarks.rounds import apart, out_folder, predicted, show

BATCH = 128


def main() -> None:
    """Measure net by net, from one GPU up; rows are written as they come."""
    from cnnkit.lab import environment

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    there = len(environment.gpus())
    parser.add_argument(
        "--gpus",
        type=results.numbers(int),
        help="how many, with commas, one GPU first; all powers of two when left out",
    )
    parser.add_argument("--nets", default="googlenet,resnet18", help="with commas between")
    parser.add_argument(
        "--cases", default="sync,every(8)", help=f"some of: {', '.join(LINK_CASES)}; sync among them"
    )
    parser.add_argument("--n", type=int, default=4, help="measured windows")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a measured window")
    a = parser.parse_args()
    counts = a.gpus or [2**i for i in range(8) if 2**i <= max(there, 2)]
    if counts[0] != 1 or sorted(set(counts)) != counts:
        parser.error(f"--gpus {','.join(map(str, counts))}: begin with 1 and count up, as in 1,2,4")
    if there and counts[-1] > there:
        parser.error(f"--gpus {','.join(map(str, counts))}: there are {there} GPUs")
    name = f"scaling_gpu{counts[-1]}" if there else f"scaling_cpu{counts[-1]}"
    for net in a.nets.split(","):
        options = ["--n", str(a.n), "--seconds", str(a.seconds), "--batch", str(BATCH), "--net", net]
        one = 0.0
        for count in counts:
            cases = "alone" if count == 1 else a.cases
            arguments = ["part", "--workers", str(count), "--cases", cases, *options]
            found = apart(MODULE, arguments, count, gpus=bool(there))
            one = one or float(np.median(found["alone"]["images_per_s"]))
            rows = [r for case, got in found.items() for r in case_rows(net, count, case, got, one)]
            show(rows)
            print(results.update(name, rows, folder=out_folder()), flush=True)


def case_rows(net: str, count: int, case: str, got: dict[str, Any], one: float) -> list[dict[str, Any]]:
    """The rows of a net on so many GPUs.

    Args:
        got: of `benchmarks.rounds.measure`.
        one: images a second of one GPU.
    """
    rates = np.array(got["images_per_s"])
    if count == 1:
        return [row(f"{net} 1 GPU", "images_per_s", list(rates), "images/s")]
    label = f"{net} {count} GPUs {case}"
    extra = {key: got[key] for key in ("fetch", "exchange_seconds", "step_seconds")}
    delay = LINK_CASES[case].get("delay", 0)
    return [
        row(label, "images_per_s", list(rates), "images/s", **extra),
        row(label, "of_linear", list(rates / one / count), "fraction"),
        row(label, "busy_min", [float(np.min(got["busy"]))], "fraction"),
        row(label, "predicted", list(predicted(got, BATCH, delay) / rates), "ratio"),
    ]


if __name__ == "__main__":
    main()
