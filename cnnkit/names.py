"""Choosing a thing by its name, with the nearest known name when it is misspelt."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def choose(name: str, options: Mapping[str, T], what: str) -> T:
    """The option of that name.

    Args:
        name: what the user wrote.
        options: known names and what they stand for.
        what: what is being chosen, as it reads in the error, e.g. ``"optimizer"``.

    Raises:
        ValueError: the name is unknown; the text suggests the nearest one and lists all.

    >>> choose("sgd", {"sgd": 1, "adamw": 2}, "optimizer")
    1
    >>> choose("sdg", {"sgd": 1, "adamw": 2}, "optimizer")
    Traceback (most recent call last):
    ValueError: unknown optimizer 'sdg': did you mean 'sgd'? Known: adamw, sgd
    """
    if name in options:
        return options[name]
    small = {str(option).lower(): option for option in options}
    near = difflib.get_close_matches(str(name).lower(), small, n=1, cutoff=0.5)
    hint = f"did you mean {small[near[0]]!r}? " if near else ""
    raise ValueError(f"unknown {what} {name!r}: {hint}Known: {', '.join(sorted(options))}")
