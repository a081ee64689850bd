"""`cnnkit reproduce`: the experiments of the thesis and the paper, by name."""

import argparse
import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

from cnnkit.names import choose


def add_parser(commands: Any) -> None:
    """Add `reproduce` to what argparse's ``add_subparsers`` returned, if there is anything to reproduce."""
    if not (names := available()):
        return
    parser = commands.add_parser(
        "reproduce",
        usage="cnnkit reproduce EXPERIMENT [SETTING=VALUE …] [options]",
        help="run an experiment of the thesis or the paper",
        description="Run an experiment again, and print its table; figures land beside the results.",
        epilog=f"experiments: {', '.join(names)}",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="its name, as below, or all")
    parser.add_argument(
        "changes",
        nargs="*",
        default=[],
        type=change,
        metavar="SETTING=VALUE",
        help="in place of the preset's",
    )
    parser.add_argument(
        "--preset", default="small", help="smoke (seconds), small (minutes) or full (GPU) (small)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/reproduced"),
        help="where results and figures land (runs/reproduced)",
    )
    parser.set_defaults(handler=run)


def available() -> list[str]:
    """Names of the experiments that this installation has."""
    try:
        from cnnkit.experiments import EXPERIMENTS
    except ImportError:
        return []
    return [name for name, module in EXPERIMENTS.items() if importlib.util.find_spec(module) is not None]


def change(text: str) -> tuple[str, Any]:
    """A setting and its value, which is plain Python or else a word.

    >>> change("epochs=3"), change("speeds=[1, 0.5]"), change("net=lenet")
    (('epochs', 3), ('speeds', [1, 0.5]), ('net', 'lenet'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form SETTING=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def run(arguments: argparse.Namespace) -> int:
    """`cnnkit reproduce`; of all, one that this machine cannot hold is said, and the others run."""
    from cnnkit.experiments import reproduce
    from cnnkit.experiments.base import first_of_job
    from cnnkit.parallel import workers

    asked, known = arguments.experiment, available()
    chosen = known if asked == "all" else [choose(asked, {name: name for name in known}, "experiment")]
    workers.join()
    left_out = 0
    for name in chosen:
        try:
            outcome = reproduce(name, arguments.preset, arguments.folder, **dict(arguments.changes))
        except (OSError, ImportError) as error:
            if asked != "all":
                raise
            print(f"cnnkit: {name} was left out: {error}", file=sys.stderr)
            left_out += 1
            continue
        if first_of_job():
            print(outcome)
            print(f"{outcome.folder / name}.json, .png and .svg")
    return 2 if left_out else 0
