"""CUDA-CNN's text configuration files taken apart: settings and layers' blocks, each with its line."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from cnnkit.names import choose

MOST = 100_000  # of what is counted; beyond, a slip of the keyboard is likelier than a network


@dataclass(frozen=True)
class Setting:
    """One ``KEY=VALUE;``, and the line it stands in."""

    key: str
    value: str
    line: int


@dataclass
class Block:
    """Settings that belong together: those of a layer, or those outside of all blocks.

    Args:
        file: how errors call the file.
        line: where the block begins; 0 for what stands outside.
        settings: by key.
        read: keys that were asked for.
    """

    file: str
    line: int
    settings: dict[str, Setting] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def add(self, setting: Setting) -> None:
        """Take a setting in.

        Raises:
            ValueError: the key is there already.
        """
        if (before := self.settings.get(setting.key)) is not None:
            self.fail(
                setting.key, f"was set in line {before.line} already; a key stands once in a block", setting
            )
        self.settings[setting.key] = setting

    def fail(self, key: str, why: str, at: Setting | None = None) -> NoReturn:
        """Say what is wrong with a key.

        Raises:
            ValueError: always; the text begins with file, line and key.
        """
        at = at or self.settings.get(key)
        line = at.line if at else self.line
        raise ValueError(f"{self.file}, {f'line {line}, ' if line else ''}{key}: {why}")

    def text(self, key: str, default: str | None = None) -> str:
        """The value of a key.

        Raises:
            ValueError: it is missing and has no default.
        """
        self.read.add(key)
        if key in self.settings:
            return self.settings[key].value
        if default is None:
            where = "this layer needs it" if self.line else "the file needs it, outside of all blocks"
            self.fail(key, f"is missing; {where}")
        return default

    def names(self, key: str) -> list[str]:
        """Names with commas between them.

        Raises:
            ValueError: it is missing, or a name is empty or there twice.
        """
        found = self.text(key).split(",")
        if not all(found) or len(set(found)) < len(found):
            self.fail(key, f"is {','.join(found)!r}; names are needed, each once, with commas between them")
        return found

    def one_of(self, key: str, options: Mapping[str, str], default: str | None = None) -> str:
        """What the value of a key stands for.

        Raises:
            ValueError: it is none of the options; the nearest is suggested.
        """
        value = self.text(key, default)
        try:
            return choose(value, options, "value")
        except ValueError as error:
            self.fail(key, str(error))

    def flag(self, key: str) -> bool:
        """``true`` or ``false``; false where it is left out."""
        return self.one_of(key, {"true": "true", "false": ""}, "false") == "true"

    def whole(self, key: str, least: int, default: int | None = None) -> int:
        """A whole number.

        Raises:
            ValueError: it is none, or out of its range.
        """
        value = self.text(key, None if default is None else str(default))
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", value) or not least <= int(value) <= MOST:
            self.fail(key, f"is {value!r}; a whole number from {least} to {MOST:,} is needed")
        return int(value)

    def number(self, key: str, default: float | None = None, below: float = math.inf) -> float:
        """A number from 0 on.

        Raises:
            ValueError: it is none, or out of its range.
        """
        value = self.text(key, None if default is None else str(default))
        plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?f?", value, re.IGNORECASE)
        found = float(value.rstrip("fF")) if plain else math.nan
        if not (math.isfinite(found) and 0 <= found < below):
            limit = "" if below == math.inf else f" and below {below:g}"
            self.fail(key, f"is {value!r}; a number from 0 on{limit} is needed")
        return found

    def unread(self) -> list[str]:
        """The settings that nobody asked for, as ``line 3: KEY``."""
        return [f"line {s.line}: {s.key}" for s in self.settings.values() if s.key not in self.read]


def blocks(text: str, file: str) -> tuple[Block, list[Block]]:
    """What stands outside of all blocks, and the blocks in their order.

    Args:
        text: of the file.
        file: how errors call it.

    Raises:
        ValueError: a comment, a block or a setting is not closed, or is no setting.

    >>> outside, layers = blocks("#note# A = 1; [ LAYER = DATA; ]", "net.txt")
    >>> outside.whole("A", 0), layers[0].text("LAYER")
    (1, 'DATA')
    """
    outside, made = Block(file, 0), []
    block, word, begin = outside, "", 0
    line = 1
    for sign, line in _without_comments(text, file):
        begin = begin or line
        if sign == "[":
            if block is not outside:
                _fail(file, line, f"a block begins inside the one of line {block.line}: close that with ]")
            _no_rest(file, begin, word)
            block = Block(file, line)
        elif sign == "]":
            _no_rest(file, begin, word)
            if block is outside:
                _fail(file, line, "] closes a block, but none is open")
            made.append(block)
            block = outside
        elif sign == ";":
            block.add(_setting(file, begin, word))
        else:
            word += sign
            continue
        word, begin = "", 0
    _no_rest(file, begin or line, word)
    if block is not outside:
        _fail(file, block.line, "the block that begins here is not closed: ] is missing")
    return outside, made


def _without_comments(text: str, file: str) -> Iterator[tuple[str, int]]:
    """Each character that means something, and its line."""
    line, opened = 1, 0
    for sign in text.lstrip("\ufeff"):
        if sign == "#":
            opened = 0 if opened else line
        elif not opened and not sign.isspace() and sign != "\0":
            yield sign, line
        line += sign == "\n"
    if opened:
        _fail(file, opened, "the comment that begins here is not closed: comments stand between two #, #so#")


def _setting(file: str, line: int, word: str) -> Setting:
    key, equals, value = word.partition("=")
    if not (equals and key and value) or "=" in value:
        _fail(file, line, f"{word[:40] + ';'!r} is no setting; a setting reads KEY=VALUE;")
    return Setting(key, value, line)


def _no_rest(file: str, line: int, word: str) -> None:
    if word:
        _fail(file, line, f"{word[:40]!r} is not closed: a setting reads KEY=VALUE; with a semicolon")


def _fail(file: str, line: int, why: str) -> NoReturn:
    raise ValueError(f"{file}, line {line}: {why}")
