"""`cnnkit plot`: curves of runs as a picture."""

import argparse
from pathlib import Path
from typing import Any

EPILOG = """
  cnnkit plot runs/a                          training and test accuracy of one run
  cnnkit plot runs/a runs/b --x seconds       two runs against their training time
  cnnkit plot sgd=runs/s0,runs/s1 muon=runs/m0,runs/m1    seeds as mean and band
  cnnkit plot runs/a --y loss lr --out a.svg  loss and learning rate side by side, as SVG
"""


def add_parser(commands: Any) -> None:
    """Add `plot` to what argparse's ``add_subparsers`` returned."""
    parser = commands.add_parser(
        "plot",
        help="draw runs' curves as PNG, SVG or PDF",
        description="Draw runs' curves.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", metavar="FOLDER", help="a run's folder, or LABEL=FOLDER,FOLDER for several seeds"
    )
    parser.add_argument("--x", default="epochs", help="epochs, examples or seconds (epochs)")
    parser.add_argument(
        "--y",
        nargs="+",
        default=["accuracy"],
        help="accuracy, error, loss, or a column such as lr (accuracy)",
    )
    parser.add_argument("--parts", nargs="+", help="of train, held_out, test")
    parser.add_argument("--log", action="store_true", help="a logarithmic y axis")
    parser.add_argument("--rounds", action="store_true", help="what each worker of one run did, instead")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="ending in .png, .svg or .pdf (FOLDER/curves.png)"
    )
    parser.add_argument("--width", default="page", help="column, page, or inches (page)")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> None:
    """`cnnkit plot`."""
    from cnnkit.notebook import plots

    runs, first = named(arguments.runs)
    if arguments.rounds and len(arguments.runs) > 1:
        raise ValueError("--rounds draws one run; give one folder")
    if arguments.rounds:
        figure = plots.rounds(first)
    else:
        figure = plots.curves(runs, arguments.x, arguments.y, arguments.parts, log=arguments.log)
    name = "rounds.png" if arguments.rounds else "curves.png"
    out = arguments.out or (Path(first) / name if len(arguments.runs) == 1 else Path(name))
    print(plots.save(figure, out, _width(arguments.width)))


def named(texts: list[str]) -> tuple[Any, str]:
    """Runs as `cnnkit.plots.curves` takes them, and the first folder.

    >>> named(["runs/a"]), named(["x=runs/a,runs/b", "y=runs/c"])[0]
    ((['runs/a'], 'runs/a'), {'x': ['runs/a', 'runs/b'], 'y': ['runs/c']})

    Raises:
        ValueError: some have labels and some have none.
    """
    pairs = [text.partition("=") for text in texts]
    labels = [bool(equals) for _, equals, _ in pairs]
    if not any(labels):
        return texts, texts[0]
    if not all(labels):
        raise ValueError("give every folder a label, or none: LABEL=FOLDER,FOLDER")
    groups = {label: folders.split(",") for label, _, folders in pairs}
    return groups, next(iter(groups.values()))[0]


def _width(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
