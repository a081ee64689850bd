"""The commands `lab` and `launch`."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cnnkit.lab import check, jobs, units
from cnnkit.lab.cluster import Cluster
from cnnkit.lab.launch import launch

LAB = """
a cheap cluster on this machine: nodes with a network of their own, joined by shaped links, running the
processes of one job. Example: cnnkit lab --nodes 4 --rate 100mbit -- python train.py
"""
LAUNCH = """
the processes of one job over this machine's devices, without shaped links: one a GPU, or as many as you say.
Example: cnnkit launch --processes 2 -- python train.py
"""


def add_parser(commands: Any) -> None:
    """Add `lab` and `launch` to what argparse's ``add_subparsers`` returned; each sets ``handler``.

    A handler takes the parsed arguments and returns the exit status.
    """
    lab = commands.add_parser("lab", help="run a job on a cluster made of this machine", description=LAB)
    lab.add_argument("--nodes", type=int, default=2, help="how many nodes (2)")
    lab.add_argument(
        "--rate", help="of each node's link, as tc writes it: 100mbit, 1gbit; no limit without it"
    )
    lab.add_argument(
        "--delay", default="0s", help="from node to node, e.g. 1ms; needs the kernel's sch_netem"
    )
    lab.add_argument("--workers-per-node", type=int, default=1, help="devices that a node drives (1)")
    lab.add_argument("--check", action="store_true", help="measure what the links carry, and print it")
    lab.set_defaults(handler=run_lab)

    start = commands.add_parser("launch", help="run a job over this machine's devices", description=LAUNCH)
    start.add_argument("--processes", type=int, help="how many; one a GPU without it")
    start.add_argument("--workers-per-process", type=int, default=1, help="devices that one drives (1)")
    start.set_defaults(handler=run_launch)

    for parser in (lab, start):
        parser.add_argument("--pin", action="store_true", help="share the cores out")
        parser.add_argument("--cpu", action="store_true", help="CPU devices, also where there are GPUs")
        parser.add_argument("--logs", type=Path, help="folder for the logs (runs/lab-DATE-TIME)")
        parser.add_argument("--keep-going", action="store_true", help="let the others run on when one fails")
        parser.add_argument("command", nargs=argparse.REMAINDER, help="-- program and arguments")


def run_lab(arguments: argparse.Namespace) -> int:
    """`cnnkit lab`."""
    command = _command(arguments, needed=not arguments.check)
    with Cluster(
        arguments.nodes,
        arguments.rate,
        delay=arguments.delay,
        workers_per_node=arguments.workers_per_node,
        pin=arguments.pin,
        gpus=False if arguments.cpu or not command else None,
        folder=_logs(arguments) if command else None,
    ) as lab:
        if arguments.check:
            for name, found in zip(lab.names, check.measure(lab)):
                asked = f", asked {units.words(units.bits(arguments.rate))}" if arguments.rate else ""
                trip = f"round trip {1e3 * found['round_trip']:.2f} ms"
                print(f"{name}: receives {found['rate'] / 1e6:.1f} Mbit/s{asked}; {trip}")
        if command:
            return _report(lambda: lab.run(command, keep_going=arguments.keep_going).statuses)
    return 0


def run_launch(arguments: argparse.Namespace) -> int:
    """`cnnkit launch`."""
    return _report(
        lambda: launch(
            _command(arguments),
            arguments.processes,
            workers_per_process=arguments.workers_per_process,
            pin=arguments.pin,
            gpus=False if arguments.cpu else None,
            folder=_logs(arguments),
            keep_going=arguments.keep_going,
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m cnnkit.lab`: the two commands alone."""
    parser = argparse.ArgumentParser(prog="python -m cnnkit.lab", description=__doc__)
    add_parser(parser.add_subparsers(required=True))
    arguments = parser.parse_args(argv)
    try:
        return arguments.handler(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"cnnkit: {error}", file=sys.stderr)
        return 2


def _command(arguments: argparse.Namespace, needed: bool = True) -> list[str]:
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if needed and not command:
        raise ValueError("no command: write it after --, e.g. -- python train.py")
    return command


def _logs(arguments: argparse.Namespace) -> Path:
    return arguments.logs or Path("runs", time.strftime("lab-%Y%m%d-%H%M%S"))


def _report(run: Any) -> int:
    """The exit status a shell expects: 0, the first failing process's, or 128 + signal."""
    try:
        statuses = run()
    except jobs.JobFailed as error:
        print(f"cnnkit: {error}", file=sys.stderr)
        status = error.status
        return status if status > 0 else 128 - status
    except KeyboardInterrupt:
        print("cnnkit: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    print(", ".join(f"{name}: {jobs.describe(status)}" for name, status in statuses.items()))
    return 0
