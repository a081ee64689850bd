"""Errors as the command line says them: with options where the library's own text has Python's words."""

import re
from collections.abc import Iterable, Mapping

PHRASES: Mapping[str, str] = {
    "call fit() again": "give the same command again",
    ", or run.save() elsewhere": "",
    "read it with Run.load()": "draw it with cnnkit plot",
    "for want of a folder=": "for want of a --folder",
    "; run.model has the weights from before": "",
}


def spoken(text: str, options: Iterable[str]) -> str:
    """The text of an error for somebody who typed a command.

    Args:
        text: as the library has it; what stands within a call, as in ``cosine(0.1, warmup=1)``, is left as it is.
        options: the settings that the command has options for, by their names in Python.

    >>> spoken("smoothing=0.1 goes with loss='cross_entropy', or use another folder=", ["smoothing", "loss", "folder"])
    '--smoothing 0.1 goes with --loss cross_entropy, or use another --folder'
    >>> spoken("write warm_start(1, 16, epochs=5)", ["epochs"])
    'write warm_start(1, 16, epochs=5)'
    """
    text = re.sub(r"^\[Errno \d+\] ", "", text)
    for said, instead in PHRASES.items():
        text = text.replace(said, instead)
    names = "|".join(map(re.escape, options))
    if not names:
        return text
    call = r"\w+\((?:[^()]|\([^()]*\))*\)"
    setting = rf"(?<![\w.])(?P<name>{names})=(?:'(?P<word>[^']*)'|(?P<value>[\w.+-]*\w))?"
    return re.sub(f"{call}|{setting}", _option, text)


def _option(found: re.Match[str]) -> str:
    if found["name"] is None:
        return found[0]
    value = found["word"] if found["word"] is not None else found["value"]
    return f"--{found['name'].replace('_', '-')}" + (f" {value}" if value is not None else "")
