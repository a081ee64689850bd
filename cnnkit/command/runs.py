"""`cnnkit runs`: what has been trained below a folder, read without JAX."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cnnkit.command.speech import spoken
from cnnkit.record.folder import settings_in
from cnnkit.record.rows import Record


class Line(NamedTuple):
    """A run as the list shows it."""

    folder: str
    net: str
    data: str
    epochs: str
    test: str
    seconds: str


def add_parser(commands: Any) -> None:
    """Add `runs` to what argparse's ``add_subparsers`` returned."""
    parser = commands.add_parser(
        "runs",
        help="list what has been trained",
        description="List the runs below a folder: network, data, epochs, test accuracy of the last epoch.",
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="where to look (runs)")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """`cnnkit runs`; a damaged run is named, and the others are listed."""
    if not arguments.folder.is_dir():
        raise FileNotFoundError(f"{arguments.folder}: no such folder; runs lie where --folder put them")
    lines, damaged = [Line("folder", "network", "data", "epochs", "test %", "train s")], 0
    for path in sorted(arguments.folder.rglob("config.json")):
        try:
            lines += filter(None, [line(path.parent)])
        except (ValueError, OSError) as error:
            print(f"cnnkit: {spoken(str(error), ['folder'])}", file=sys.stderr)
            damaged += 1
    status = 2 if damaged else 0
    if len(lines) == 1:
        print(f"no runs below {arguments.folder}")
        return status
    widths = [max(map(len, column)) for column in zip(*lines)]
    for row in lines:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
    return status


def line(folder: Path) -> Line | None:
    """What a run's folder says of it; None where it is another program's."""
    config = settings_in(folder)
    if config is None or not isinstance(config.get("net"), dict) or not isinstance(config.get("data"), dict):
        return None
    record = Record(folder, writes=False)
    epochs = record.epochs()
    last: Mapping[str, Any] = epochs[-1] if epochs else {}
    accuracy, seconds = last.get("test_accuracy"), last.get("train_total")
    return Line(
        str(folder),
        config.get("net_name") or shown(config["net"]),
        str(config["data"].get("name", "")),
        f"{len(epochs)} of {config.get('epochs', '?')}{_ended(record.rows)}",
        "" if accuracy is None else f"{100 * accuracy:.2f}",
        "" if seconds is None else f"{seconds:.1f}",
    )


def _ended(rows: list[dict[str, Any]]) -> str:
    last = rows[-1] if rows else {}
    return f", {last['event']}" if last.get("kind") == "event" and "event" in last else ""


def shown(net: Mapping[str, Any], most: int = 36) -> str:
    """A network's description in few words: its layers with weights, in order.

    >>> shown({"kind": "serial", "parts": [{"kind": "conv", "features": 20}, {"kind": "relu"},
    ...     {"kind": "dense", "features": 10}]})
    'conv 20, dense 10'
    """
    words = ", ".join(_layers(net)) or str(net.get("kind"))
    return words if len(words) <= most else words[: most - 1] + "…"


def _layers(net: Mapping[str, Any]) -> list[str]:
    own = [f"{net['kind']} {net['features']}"] if "features" in net else []
    return own + [word for part in net.get("parts", ()) for word in _layers(part)]
