"""The parser with every command, and how a command ends: its status, and one line where it failed."""

import argparse
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import cnnkit
from cnnkit.command import data, nets, plot, reproduce, runs, train
from cnnkit.command.speech import spoken
from cnnkit.lab.cli import add_parser as add_lab
from cnnkit.names import nearest

DESCRIPTION = """
Train convolutional networks on one device, several, and several machines.

  cnnkit train --data digits            train, record and resume; Ctrl-C saves
  cnnkit data                           which data sets are here
  cnnkit summary lenet --data mnist     shapes, parameters and work of a network
  cnnkit plot runs/digits-tiny-0        accuracy curves as a picture
  cnnkit runs                           what has been trained
"""
NAMELESS = {"net", "handler", "argv", "command", "changes", "experiment", "runs"}  # what no option sets
INTERRUPTED = 128 + signal.SIGINT


class Parser(argparse.ArgumentParser):
    """argparse's, with errors of one line, and with options that may stand between what has no name."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """What argparse does; of a command that takes a list, its parts may stand on either side of an option."""
        lists = any(not a.option_strings and a.nargs in ("*", "+") for a in self._actions)
        if self._apart:
            return super().parse_known_args(args, namespace)
        self._apart = True  # argparse asks this method again, for the one and for the other
        try:
            parse = self.parse_known_intermixed_args if lists else super().parse_known_args
            found, unknown = parse(args, namespace)
        finally:
            self._apart = False
        # Here, and not by the parser of all commands, which does not know the options of this one.
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    _apart = False

    def error(self, message: str) -> NoReturn:
        """Say what was wrong and where help is, and end with status 2."""
        self.exit(2, f"{self.prog}: {message}{self._hint(message)}; see {self.prog} --help\n")

    def _hint(self, message: str) -> str:
        if found := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            near = nearest(found[1], self._option_string_actions)
        elif found := re.search(r"invalid choice: '([^']*)'", message):
            near = nearest(found[1], [str(name) for a in self._actions for name in a.choices or ()])
        else:
            near = None
        return f"; did you mean {near}?" if near else ""


def make_parser() -> Parser:
    """The parser of all commands; each sets ``handler``, a function of the parsed arguments."""
    parser = Parser(
        prog="cnnkit",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="`cnnkit COMMAND --help` tells each command's options.",
    )
    parser.add_argument("--version", action="version", version=f"cnnkit {cnnkit.__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error arose")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (train, data, nets, plot, runs, reproduce):
        module.add_parser(commands)
    add_lab(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: what was typed after ``cnnkit``; the process's arguments when left out.

    Returns:
        the exit status: 0, 2 for a mistake that the user can mend, 130 for Ctrl-C.
    """
    arguments = make_parser().parse_args(argv)
    arguments.argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return arguments.handler(arguments) or 0
    except KeyboardInterrupt as stop:
        print(f"cnnkit: {stop or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if arguments.traceback or not _users(error):
            raise
        print(f"cnnkit: {spoken(str(error), vars(arguments).keys() - NAMELESS)}", file=sys.stderr)
        return 2


def _users(error: Exception) -> bool:
    """Whether an error tells the user what to do, rather than us: cnnkit raises it, or the system does."""
    if isinstance(error, OSError):
        return True
    if not isinstance(error, ValueError | TypeError | RuntimeError | ImportError):
        return False
    *_, last = traceback.walk_tb(error.__traceback__)
    return str(last[0].f_globals.get("__name__", "")).partition(".")[0] == "cnnkit"
