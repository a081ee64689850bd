"""`cnnkit data`: which data sets are on this machine, fetching them, and what is in them."""

import argparse
from typing import Any

from cnnkit.command import words

EPILOG = """
  cnnkit data                     which sets are here, and where
  cnnkit data fetch mnist         fetch and verify a set, once
  cnnkit data describe cifar10    classes, counts, fingerprint
  cnnkit data describe photos --size 64    a folder with a folder of images for each class
"""


def add_parser(commands: Any) -> None:
    """Add `data` to what argparse's ``add_subparsers`` returned."""
    parser = commands.add_parser(
        "data",
        help="see, fetch and describe data sets",
        description="See, fetch and describe data sets.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=show_status)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    actions.add_parser("status", help="which sets are here, and where").set_defaults(handler=show_status)
    fetch = actions.add_parser("fetch", help="fetch and verify sets")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="mnist, fashion_mnist, cifar10, cifar100")
    fetch.set_defaults(handler=run_fetch)
    describe = actions.add_parser("describe", help="what is in a set")
    describe.add_argument("data", metavar="NAME", help="a set, or a folder of images")
    describe.add_argument("--size", type=words.whole, metavar="PIXELS", help="side of a folder's images")
    describe.set_defaults(handler=run_describe, take=None, hold_out=None)


def show_status(arguments: argparse.Namespace) -> None:
    """`cnnkit data`: a line for each set."""
    from cnnkit.data import status

    for found in status():
        where = f"in {found.where}" if found.present else f"not here; cnnkit data fetch {found.name}"
        print(f"{found.name:<14} {found.title:<22} {where}")


def run_fetch(arguments: argparse.Namespace) -> None:
    """`cnnkit data fetch`."""
    from cnnkit.data import load

    for name in arguments.names:
        data = load(name)
        print(f"{data.name}: verified, in {data.source}")


def run_describe(arguments: argparse.Namespace) -> None:
    """`cnnkit data describe`."""
    print(words.dataset(arguments))
