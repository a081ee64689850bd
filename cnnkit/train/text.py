"""Calls written as text, made into what they stand for; nothing is evaluated."""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from cnnkit.names import check_keywords, choose

Makers = Mapping[str, Callable[..., Any]]


def made(text: str, makers: Makers, what: str, inside: Makers | None = None) -> Any:
    """What a name, or a call with plain arguments, stands for.

    Args:
        text: ``"flip"`` or ``"crop(32, pad=4)"``.
        makers: known names.
        what: what is being named, for errors.
        inside: names that may be called among the arguments.

    Raises:
        ValueError: another form, an unknown name, or arguments that it does not take.

    >>> made("pair(1, b=(2, 3))", {"pair": lambda a, b=0: {"a": a, "b": b}}, "thing")
    {'a': 1, 'b': (2, 3)}
    """
    return _call(_parsed(text, what), text, makers, what, inside or {})


def several(text: str, makers: Makers, what: str, inside: Makers | None = None) -> list[Any]:
    """The same for calls with commas between them.

    >>> several("more(1), more(2)", {"more": lambda n: n + 1}, "thing")
    [2, 3]
    """
    node = _parsed(text, what)
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    return [_call(node, text, makers, what, inside or {}) for node in nodes]


def _parsed(text: str, what: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):  # no Python, or a character that no Python has
        raise ValueError(_form(text, what)) from None


def _call(node: ast.expr, text: str, makers: Makers, what: str, inside: Makers) -> Any:
    call = ast.Call(node, [], []) if isinstance(node, ast.Name) else node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(_form(text, what))
    make = choose(call.func.id, makers, what)
    placed = [_argument(argument, text, what, inside) for argument in call.args]
    named = {str(word.arg): _argument(word.value, text, what, inside) for word in call.keywords}
    try:
        check_keywords(make, named, {})
        return make(*placed, **named)
    except TypeError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None


def _argument(node: ast.expr, text: str, what: str, inside: Makers) -> Any:
    if inside and isinstance(node, ast.Call):
        return _call(node, text, inside, f"name within the {what}", {})
    if inside and isinstance(node, ast.Tuple):
        return tuple(_argument(part, text, what, inside) for part in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(
            f"{what} {text!r}: arguments are plain numbers, words in quotes, and lists"
        ) from None


def _form(text: str, what: str) -> str:
    return f"{what} {text!r} is not of the form name or name(settings), as crop(32, pad=4)"
