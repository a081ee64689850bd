"""`cnnkit summary`: a network's shapes, parameters and work, before anything is compiled."""

import argparse
from typing import Any

from cnnkit.command import words


def add_parser(commands: Any) -> None:
    """Add `summary` to what argparse's ``add_subparsers`` returned."""
    parser = commands.add_parser(
        "summary",
        help="a network's shapes, parameters and work",
        description="A network's shapes, parameters and work, layer by layer; nothing is compiled.",
    )
    parser.add_argument(
        "net", metavar="NET", help="a network's name, or FILE.py:FUNCTION (a function of the classes)"
    )
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--data", metavar="NAME", help="take shape and classes from this set (digits)")
    given.add_argument(
        "--shape", type=shape, metavar="H,W,C", help="height, width and channels of the images"
    )
    parser.add_argument("--classes", type=words.whole, default=10, help="with --shape (10)")
    parser.set_defaults(handler=run, size=None, take=None, hold_out=None)


def shape(text: str) -> tuple[int, int, int]:
    """Height, width and channels.

    >>> shape("28,28,1")
    (28, 28, 1)
    """
    sides = text.replace("x", ",").replace("×", ",").split(",")
    if len(sides) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not height, width and channels, as 28,28,1")
    height, width, channels = map(words.whole, sides)
    return height, width, channels


def run(arguments: argparse.Namespace) -> None:
    """`cnnkit summary`."""
    from cnnkit.layers import summary

    at, classes = arguments.shape, arguments.classes
    if at is None:
        arguments.data = arguments.data or "digits"
        data = words.dataset(arguments)
        at, classes = data.shape, len(data.classes)
    print(summary(words.network(arguments.net, classes), at))
