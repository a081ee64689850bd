"""Rounds over a slow link between two GPUs, and scaling over a fast one; each figure beside what the cost model predicts.

python -m benchmarks.link --rate 1gbit    rounds_link_gpu.json; needs two GPUs and root
python -m benchmarks.link --scaling       its rows of GoogLeNet on two GPUs
"""

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.results import row
from benchmarks.rounds import apart, augmented, measure, out_folder, predicted, show, synthetic

MODULE = "benchmarks.link"


def shaped_loopback(rate: float) -> None:
    """Put this process alone into a network namespace whose loopback has that rate, bits a second."""
    from pyroute2 import IPRoute

    from cnnkit.lab.environment import OVER_THE_LINK

    clone_newnet = 0x40000000
    if ctypes.CDLL(None, use_errno=True).unshare(clone_newnet):
        raise OSError(ctypes.get_errno(), "a network namespace is not allowed here; run as root")
    with IPRoute() as ip:
        lo = ip.link_lookup(ifname="lo")[0]
        ip.link("set", index=lo, state="up", mtu=9000)
        ip.tc("add", "tbf", lo, 0x100000, rate=int(rate / 8), burst=128 * 1024, limit=1_000_000)
    os.environ |= {**OVER_THE_LINK, "NCCL_SOCKET_IFNAME": "lo"}


LINK_CASES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "accumulate", "fetch": 1},
    "every(8)": {"fetch": 8},
    "hide no delay": {"fetch": "hide(0.95)"},
    "hide": {"fetch": "hide(1.0)", "delay": 1},
    "every(1000) delay": {"fetch": 1000, "delay": 1},
}


def link_part(cases: list[str], workers: int, net: str, batch: int, n: int, seconds: float) -> dict[str, Any]:
    """The link cases in this process, over whatever joins its GPUs."""
    from cnnkit import nets

    large = net in ("googlenet", "resnet18")
    data = synthetic(8_192 * max(workers, 2), (224, 224, 3)) if large else synthetic(500_000)
    make = lambda: nets.NAMES[net](10)
    dtype = "bfloat16" if large else "float32"
    out = {}
    for case in cases:
        settings = LINK_CASES.get(case, {})
        out[case] = measure(
            make, data, batch, n, seconds, workers=workers, dtype=dtype, augment=augmented(net), **settings
        )
        print(net, workers, case, out[case], file=sys.stderr, flush=True)
    return out


def link(rates: list[str], n: int, seconds: float, cases: str) -> None:
    """Two GPUs on CUDA-CNN's CIFAR-10 network: alone, over NVLink, over slow links; in some of LINK_CASES."""
    net, batch = "cuda_cnn_cifar10", 128
    options = ["--n", str(n), "--seconds", str(seconds), "--batch", str(batch), "--net", net]
    one = apart(MODULE, ["part", "--workers", "1", "--cases", "alone", *options])["alone"]
    nvlink = apart(MODULE, ["part", "--workers", "2", "--cases", cases, *options])
    rows = alone_rows(net, one)
    for case, got in nvlink.items():
        rows += link_rows(f"2 nvlink {case}", got, nvlink, one, LINK_CASES[case].get("delay", 0))
    kept(rows)
    fastest = max(float(np.median(got["images_per_s"])) for got in nvlink.values())
    for rate in rates:
        slow = apart(MODULE, ["part", "--workers", "2", "--cases", cases, "--rate", rate, *options])
        for case, got in slow.items():
            label = f"2 {rate} {case}"
            rows += link_rows(label, got, slow, one, LINK_CASES[case].get("delay", 0), fastest)
    kept(rows)


def scaling(n: int, seconds: float, ways: list[int]) -> None:
    """GoogLeNet on one GPU and on two over NVLink, by a process a GPU and by one process, as ``ways`` has them."""
    options = ["--n", str(n), "--seconds", str(seconds), "--batch", "128", "--net", "googlenet"]
    one = apart(MODULE, ["part", "--workers", "1", "--cases", "alone", *options])["alone"]
    rows = alone_rows("googlenet", one)
    kept(rows)
    for processes in ways:
        label = "googlenet 2 nvlink" + ", 2 processes" * (processes == 2)
        found = apart(MODULE, ["part", "--workers", "2", "--cases", "sync", *options], processes, gpus=True)
        rows += link_rows(f"{label} sync", found["sync"], found, one, 0)
        part = np.array(found["sync"]["images_per_s"]) / np.median(one["images_per_s"]) / 2
        rows.append(row(f"{label} sync", "of_linear", list(part), "fraction"))
        kept(rows)


def alone_rows(net: str, one: dict[str, Any]) -> list[dict[str, Any]]:
    """What one GPU does."""
    return [row(f"{net} 1 GPU", "images_per_s", one["images_per_s"], "images/s")]


def link_rows(
    label: str,
    got: dict[str, Any],
    beside: dict[str, Any],
    one: dict[str, Any],
    delay: int,
    unlinked: float | None = None,
) -> list[dict[str, Any]]:
    """Two GPUs' throughput, beside synchronous training over the same link, one GPU, and the model's.

    Args:
        beside: all cases over that link.
        one: what a GPU does alone.
        unlinked: images a second of the fastest case with no link to cross.
    """
    rates = np.array(got["images_per_s"])
    extra = {key: got[key] for key in ("fetch", "exchange_seconds", "step_seconds")}
    rows = [
        row(label, "images_per_s", list(rates), "images/s", **extra),
        row(label, "over_sync", list(rates / np.median(beside["sync"]["images_per_s"])), "ratio"),
        row(label, "of_one_node", list(rates / np.median(one["images_per_s"])), "ratio"),
        row(label, "busy_min", [float(np.min(got["busy"]))], "fraction"),
        row(label, "predicted", list(predicted(got, 128, delay) / rates), "ratio"),
    ]
    if unlinked:
        rows.append(row(label, "of_no_link", list(rates / unlinked), "fraction"))
    return rows


def kept(rows: list[dict[str, Any]]) -> None:
    """Rows shown and written beside those of other cases."""
    show(rows)
    print(results.update("rounds_link_gpu", rows, folder=out_folder()))


def main() -> None:
    """Measure what was asked for, each part in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["part"], help=argparse.SUPPRESS)
    parser.add_argument("--rate", help="of the link, e.g. 1gbit; several with commas; '' for NVLink alone")
    parser.add_argument("--cases", default="", help=f"some of: {', '.join(LINK_CASES)}; sync among them")
    parser.add_argument("--scaling", action="store_true", help="GoogLeNet on two GPUs in place of a link")
    parser.add_argument(
        "--processes",
        default="2,1",
        choices=["1", "2", "2,1", "1,2"],
        help="with --scaling: by how many, in turn",
    )
    parser.add_argument("--n", type=int, default=3, help="measured windows")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a measured window")
    for hidden, default in (("--net", ""), ("--found", "")):
        parser.add_argument(hidden, default=default, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=128, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what != "part":
        if args.scaling:
            scaling(args.n, args.seconds, [int(count) for count in args.processes.split(",")])
        else:
            rates = "1gbit" if args.rate is None else args.rate
            cases = args.cases or ",".join(LINK_CASES)
            link([rate for rate in rates.split(",") if rate], args.n, args.seconds, cases)
        return
    if args.rate:
        from cnnkit.lab.units import bits

        shaped_loopback(bits(args.rate))
    from cnnkit.parallel import workers

    workers.join()
    import jax

    found = link_part(args.cases.split(","), args.workers, args.net, args.batch, args.n, args.seconds)
    if jax.process_index() == 0:
        Path(args.found).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
