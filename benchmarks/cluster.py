"""The cluster experiment measured in full, beside PyTorch's DDP and PostLocalSGD over the same links.

python -m benchmarks.cluster                    cluster_cpu.json: four nodes on this machine, whose work is waiting
python -m benchmarks.cluster --rates 1gbit      on a machine with GPUs a GPU a node, real work: cluster_gpu.json, or
                                                cluster_gpu4.json where there are four
python -m benchmarks.cluster --rates 10gbit,1gbit --train cifar10 --target 0.6 --epochs 8
"""

import argparse
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import results

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", help="of the links, with commas; sync47 comes last")
    parser.add_argument("--policies", help="some of them, with commas; else all")
    parser.add_argument("--n", type=int, default=3, help="windows, and seeds")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a window")
    parser.add_argument("--train", help="data set on which GPUs are trained to --target, over the first rate")
    parser.add_argument("--target", type=float, default=0.6, help="test accuracy, 0 to 1")
    parser.add_argument("--epochs", type=int, default=8, help="of such a training, at the most")
    parser.add_argument("--lr", type=float, default=2.5, help="its learning rates, times the experiment's")
    a = parser.parse_args()
    from cnnkit.experiments import base, cluster
    from cnnkit.lab import environment

    gpus = environment.gpus()
    settings = dict(base.find("cluster").presets["full" if gpus else "small"])
    rates = settings["rates"] if gpus else ["1gbit", *settings["rates"]]
    settings |= {
        "rates": rates,
        "unshaped": True,
        "epochs": 0 if gpus else 10,
        "windows": [a.n, a.seconds, 2.5],
        "policies": list(cluster.POLICIES),
        "trained": ["sync", "hide"],
    }
    settings["seeds"] = a.n
    if a.rates:
        settings["rates"] = a.rates.split(",")
    if a.train:
        if not gpus:
            parser.error("--train is for GPUs; on a CPU the digits are trained on, as the preset says")
        settings |= {"train_data": a.train, "target": a.target, "epochs": a.epochs, "train_lr": a.lr}
        settings["train_rate"] = settings["rates"][0]
    if a.policies:
        settings["policies"] = a.policies.split(",")
    with tempfile.TemporaryDirectory() as folder:
        experiment = cluster.Cluster(settings, Path(folder))
        rows = experiment.rows()
    packages = []
    if not gpus and importlib.util.find_spec("torch"):
        packages = ["torch"]
        for rate, bits in experiment.rates.items():
            for nodes in experiment.nodes[-1:]:
                add_peers(rows, nodes, rate, bits, settings)
    for r in rows:
        show(r)
    folder_for = Path(os.environ.get("CNNKIT_RESULTS", results.FOLDER))
    print(results.write(named(len(gpus)), rows, packages=packages, folder=folder_for))


def named(gpus: int) -> str:
    """Of the file: more than two GPUs have one of their own.

    >>> named(0), named(2), named(8)
    ('cluster_cpu', 'cluster_gpu', 'cluster_gpu8')
    """
    return f"cluster_gpu{gpus if gpus > 2 else ''}" if gpus else "cluster_cpu"


def add_peers(
    rows: list[dict[str, Any]], nodes: int, rate: str, bits: float, settings: dict[str, Any]
) -> None:
    """DDP beside synchronous training, PostLocalSGD beside what has a period, at the same period."""
    mine = {
        r["case"]: r
        for r in rows
        if r["figure"] == "images_per_s" and r["case"].startswith(f"{nodes} {rate} ")
    }
    periods = {case: max(r["fetch"]) for case, r in mine.items()}
    found = torch_over(nodes, bits, sorted(set(periods.values())), settings)
    for case, r in mine.items():
        k = periods[case]
        name = "PyTorch DDP" if k == 1 else f"PyTorch PostLocalSGD, period {k}"
        theirs = results.row("", "", found[str(k)], "")
        r |= {"peer": name, "peer_value": theirs["value"], "peer_spread": theirs["spread"]}
        r["ratio"] = float(f"{r['value'] / theirs['value']:.4g}")


def torch_over(
    nodes: int, bits: float, periods: list[int], settings: dict[str, Any]
) -> dict[str, list[float]]:
    """PyTorch's images a second by period, over links of that rate."""
    from cnnkit.lab import cluster

    n, seconds, warm = settings["windows"]
    command = ["python", "-m", "benchmarks.cluster_torch", "--periods", ",".join(map(str, periods))]
    command += ["--wait", settings["wait"], "--batch", settings["batch"], "--n", n, "--seconds", seconds]
    with cluster(nodes=nodes, rate=bits, gpus=False) as lab:
        job = lab.run([*map(str, command), "--warm", str(warm)], show=False, cwd=ROOT)
        return json.loads(job.tail("node0", 1))


def show(r: dict[str, Any]) -> None:
    """A row on a line."""
    beside = f"  {r['peer']}: {r['peer_value']:g}, ratio {r['ratio']:g}" if "peer" in r else ""
    print(
        f"{r['case']:<34} {r['figure']:<20} {r['value']:>10g} ± {r['spread']:<9g} {r['unit']}{beside}",
        flush=True,
    )


if __name__ == "__main__":
    main()
