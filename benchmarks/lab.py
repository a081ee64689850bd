"""Whether the lab keeps its word: traffic and sums over shaped links against what was asked for.

python -m benchmarks.lab
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from benchmarks import results
from cnnkit.lab import check, cluster, units

RATES = ("10mbit", "100mbit", "1gbit")
SUMS = (
    (2, "100mbit", 25_000_000),
    (2, "1gbit", 25_000_000),
    (4, "1gbit", 25_000_000),
    (2, "100mbit", 240_000),
)


def main() -> None:
    """Measure, print and write results/lab_cpu.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=3, help="repetitions (3)")
    arguments = parser.parse_args()
    rows = []
    for rate in RATES:
        values = [received(rate, 6.0 if rate == "10mbit" else 3.0) for _ in range(arguments.n)]
        rows.append(results.row(f"2 {rate}", "of_asked", values, "ratio"))
    for nodes, rate, size in SUMS:
        seconds = sums(nodes, rate, size, arguments.n)
        predicted = 2 * (nodes - 1) / nodes * 8 * size / units.bits(rate)
        case = f"{nodes} {rate} psum of {size / 1e6:g} MB"
        rows.append(results.row(case, "seconds", seconds, "s", predicted=predicted))
        rows.append(results.row(case, "over_predicted", [s / predicted for s in seconds], "ratio"))
    rows.append(results.row("4 nodes", "start_and_stop_seconds", [start() for _ in range(arguments.n)], "s"))
    for row in rows:
        print(f"{row['case']:<30} {row['figure']:<24} {row['value']:g} ± {row['spread']:g} {row['unit']}")
    print(results.write("lab_cpu", rows, packages=["pyroute2"]))


def received(rate: str, seconds: float) -> float:
    """The slower direction's payload over the rate; frames of 1,514 bytes carry 1,448, so 0.956 at most."""
    with cluster(nodes=2, rate=rate, gpus=False) as lab:
        return min(found["rate"] for found in check.measure(lab, seconds)) / units.bits(rate)


def sums(nodes: int, rate: str, size: int, n: int) -> list[float]:
    """Seconds of each sum of so many bytes over all nodes, in one job."""
    with cluster(nodes=nodes, rate=rate, gpus=False) as lab:
        command = ["python", "-m", "benchmarks.lab", "--part", str(size), str(n)]
        job = lab.run(command, show=False, cwd=Path(__file__).parents[1])
        return json.loads(job.tail("node0", 1))


def start() -> float:
    """Seconds from nothing to a lab of four nodes, and back."""
    begin = time.perf_counter()
    cluster(nodes=4, rate="1gbit", gpus=False).close()
    return time.perf_counter() - begin


def part(size: int, n: int) -> None:
    """One process's part of `sums`."""
    from cnnkit import workers

    workers.join()
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    w = workers.make()
    row = np.ones((1, size // 4), np.float32)
    rows = jax.make_array_from_callback((w.count, size // 4), w.rows, lambda _: row)
    shared = jax.shard_map(
        lambda x: jax.lax.psum(x, "worker"), mesh=w.mesh, in_specs=P("worker"), out_specs=P()
    )
    add = jax.jit(shared)
    add(rows).block_until_ready()
    seconds = []
    for _ in range(n):
        time.sleep(0.3)  # what is under way drains, and the bucket fills
        begin = time.perf_counter()
        add(rows).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    if w.process == 0:
        print(json.dumps(seconds))
    sys.stdout.flush()


if __name__ == "__main__":
    if "CNNKIT_PROCESS" in os.environ and sys.argv[1:2] == ["--part"]:
        part(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
