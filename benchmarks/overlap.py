"""Wait-free back-propagation over shaped links between processes: how much of an exchange hides behind computing.

    python -m benchmarks.overlap --nodes 2
    python -m benchmarks.overlap --nodes 4 --batch 0 --more

A LeNet's 431,080 parameters are exchanged layer by layer over links of 100 Mbit/s. There are fewer cores than
workers: computing waits until it is as long as exchanging, times the ratio said, each operation by its FLOPs.
One case computes for real, a core for each of two processes. All ways take turns in one job.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, command, read, row, write
from cnnkit.experiments import wait_free
from cnnkit.experiments.overlap import EXCHANGES

WAYS = {
    "across": "wait-free",
    "within": "wait-free, steps apart",
    "off": "one after the other",
}
RATIOS = (0.6, 1.7)


def cases(nodes: int, n: int, hows: list[str], ratios: list[float]) -> list[dict[str, Any]]:
    """All exchanges with as much computing as exchanging; psum also with less and more of it."""
    found = [{"label": f"{nodes} {how}", "how": how} for how in hows]
    found += [{"label": f"{nodes} psum, {ratio:g}:1", "how": "psum", "ratio": ratio} for ratio in ratios]
    return [case | {"n": n, "steps": 3} for case in found]


def real(nodes: int, n: int, batch: int) -> dict[str, Any]:
    """Computing as it is: NIN for CIFAR-10."""
    label = f"{nodes} psum, real computing"
    return {
        "label": label,
        "net": "nin_cifar10",
        "shape": (32, 32, 3),
        "batch": batch,
        "ratio": None,
        "n": n,
        "steps": 3,
    }


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of one case."""
    parts = {f"{name}_ms": [1000 * s for s in found[name]] for name in ("computing", "exchanging")}
    computing = "as it is" if found["real"] else "emulated by waiting"
    more = {"net": found["net"], "computing": computing}
    made = [row(found["label"], name, values, "ms", **more) for name, values in parts.items()]
    for way, words in WAYS.items():
        case = f"{found['label']} {words}"
        made.append(row(case, "of_max", wait_free.of_max(found, way), "ratio", **more))
        made.append(row(case, "step_ms", [1000 * s for s in found[way]], "ms", **more))
    made.append(
        row(f"{found['label']} wait-free", "hidden", wait_free.hidden(found, "across"), "fraction", **more)
    )
    return made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    options.add_argument("--rate", default="100mbit")
    options.add_argument("--n", type=int, default=3)
    options.add_argument("--exchanges", nargs="*", default=EXCHANGES)
    options.add_argument("--ratios", type=float, nargs="*", default=list(RATIOS))
    options.add_argument(
        "--batch", type=int, default=16, help="of the case that computes for real; 0 leaves it out"
    )
    options.add_argument("--more", action="store_true", help="keep the other cases that the file has")
    options.add_argument("--name", default="overlap_cpu", help="of the result file")
    chosen = options.parse_args()
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for nodes in chosen.nodes:
            asked = cases(nodes, chosen.n, chosen.exchanges, chosen.ratios)
            made += wait_free.over_links(asked, nodes, chosen.rate, Path(folder, str(nodes)))
        if chosen.batch:
            asked = [real(2, chosen.n, chosen.batch)]
            made += wait_free.over_links(asked, 2, chosen.rate, Path(folder, "real"), pin=True)
    table = [r for found in made for r in rows(found)]
    before = None
    if chosen.more and (FOLDER / f"{chosen.name}.json").exists():
        before, new = read(chosen.name), {r["case"] for r in table}
        table = [r for r in before["rows"] if r["case"] not in new] + table
    for r in table:
        print(f"{r['case']:<44} {r['figure']:<14} {r['value']:g} ± {r['spread']:g} {r['unit']}")
    path = write(chosen.name, table, packages=("pyroute2",))
    if before is not None:
        written = json.loads(path.read_text()) | {"command": f"{before['command']} && {command()}"}
        path.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    print(path)


if __name__ == "__main__":
    main()
