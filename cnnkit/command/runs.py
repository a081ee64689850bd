"""`cnnkit runs`: what has been trained below a folder, read without JAX."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cnnkit.record.folder import read_config
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


def run(arguments: argparse.Namespace) -> None:
    """`cnnkit runs`."""
    if not arguments.folder.is_dir():
        raise FileNotFoundError(f"{arguments.folder}: no such folder; runs lie where --folder put them")
    found = [line(path.parent) for path in sorted(arguments.folder.rglob("config.json"))]
    lines = [Line("folder", "network", "data", "epochs", "test %", "train s"), *filter(None, found)]
    if len(lines) == 1:
        print(f"no runs below {arguments.folder}")
        return
    widths = [max(map(len, column)) for column in zip(*lines)]
    for row in lines:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def line(folder: Path) -> Line | None:
    """What a run's folder says of it; None where it is another program's."""
    config = read_config(folder)
    if config is None or not {"net", "data", "epochs"} <= set(config):
        return None
    epochs = Record(folder, writes=False).epochs()
    last: Mapping[str, Any] = epochs[-1] if epochs else {}
    accuracy, seconds = last.get("test_accuracy"), last.get("train_total")
    return Line(
        str(folder),
        shown(config["net"]),
        str(config["data"]["name"]),
        f"{len(epochs)} of {config['epochs']}",
        "" if accuracy is None else f"{100 * accuracy:.2f}",
        "" if seconds is None else f"{seconds:.1f}",
    )


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
