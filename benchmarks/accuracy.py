"""How exact the networks get: MNIST's single networks and committees, and CIFAR-10's networks.

    python -m benchmarks.accuracy mnist --preset full --seconds 280
    python -m benchmarks.accuracy cifar10 --preset full --seconds 280
    python -m benchmarks.accuracy mnist --workers 3             # afterwards, with what was chosen and kept in the file
    python -m benchmarks.accuracy cifar10 --workers 3 --case nin_cifar10

A time with "at_most" was measured while others used the device too (--beside): alone it takes no longer.
Every choice is made on held-out training images; their figures are rows of the file. Writes
results/mnist_accuracy.json or results/cifar10_accuracy.json, also where the time is over before the end: then
with what was found until then.
"""

import argparse
import ast
import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results


class TimeUp(BaseException):
    """The time that was given is over; no Exception, so that nothing on the way takes it for a fault."""


def main(argv: Sequence[str] | None = None) -> int:
    """Search, train and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", choices=["mnist", "cifar10"])
    parser.add_argument("--preset", default="full", help="smoke, small or full")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="SETTING=VALUE", help="in place of the preset's"
    )
    parser.add_argument(
        "--seconds", type=int, default=0, help="end after so many with what there is; 0 for never"
    )
    parser.add_argument("--workers", type=int, default=0, help="seeds of what was chosen through two workers")
    parser.add_argument("--case", default="nin_cifar10", help="CIFAR-10's network for --workers")
    parser.add_argument(
        "--cases", help="some of CIFAR-10's networks, with commas between; rows of others stay in the file"
    )
    parser.add_argument(
        "--beside",
        action="store_true",
        help="other trainings run on the device meanwhile: times are kept as bounds",
    )
    parser.add_argument("--into", type=Path, default=results.FOLDER, help="where the file is written")
    options = parser.parse_args(argv)
    name = f"{options.data}_accuracy"
    with tempfile.TemporaryDirectory() as folder:
        search = _search(name, options, Path(folder))
        try:
            _alarm(options.seconds)
            if options.workers:
                _by_workers(options, search, results.read(name, options.into)["rows"])
            else:
                search.run()
        except TimeUp:
            print(f"the {options.seconds} seconds are over", flush=True)
        finally:
            _alarm(0)
            rows = search.book.rows
            if options.beside:
                rows = [row | {"at_most": True} if row["unit"] == "s" else row for row in rows]
            if rows:
                write = results.update if options.workers or options.cases else results.write
                print(write(name, rows, folder=options.into))
    _summary(rows)
    return 0 if rows else 1


def _search(name: str, options: argparse.Namespace, folder: Path) -> Any:
    from cnnkit.experiments import cifar10_accuracy, mnist_accuracy
    from cnnkit.names import choose

    home: Any = mnist_accuracy if options.data == "mnist" else cifar10_accuracy
    settings = {**choose(options.preset, home.EXPERIMENT.presets, "preset"), "say": True}
    for text in options.set:
        key, _, value = text.partition("=")
        choose(key, settings, f"setting of {name}")
        settings[key] = ast.literal_eval(value)
    if options.cases:
        cases = settings["cases"]
        settings["cases"] = {name: choose(name, cases, "network") for name in options.cases.split(",")}
    make = home.Search if options.data == "mnist" else home.Nets
    return make(settings, folder)


def _by_workers(options: argparse.Namespace, search: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """What was chosen before, through two workers."""
    workers = {**search.settings["workers"], "seeds": options.workers}
    if options.data == "mnist":
        row = next(
            r for r in rows if r["figure"] == "accuracy" and r["case"].startswith("single") and r["chosen"]
        )
        search.way = row.get("way", search.way)
        search.by_workers(row["net"], row["augmentation"], row["epochs"], workers)
    else:
        row = next(r for r in rows if r["figure"] == "accuracy" and r["case"] == options.case)
        search.chosen[options.case] = row["way"]
        search.by_workers(options.case, workers)


def _alarm(seconds: int) -> None:
    def over(*_: Any) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, over if seconds else signal.SIG_DFL)
    signal.alarm(seconds)


def _summary(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if row["figure"] in ("accuracy", "seconds", "compile_seconds"):
            kept = {
                key: row[key] for key in ("case", "figure", "mean", "spread", "n", "epochs") if key in row
            }
            print(json.dumps(kept, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
