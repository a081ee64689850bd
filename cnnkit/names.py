"""Names that people write: what they stand for, and the nearest known one where a name is misspelt."""

import difflib
import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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
    if isinstance(name, Hashable) and name in options:
        return options[name]
    raise ValueError(unknown(name, options, what))


def unknown(name: object, known: Iterable[str], what: str) -> str:
    """What is said of a name that is not known.

    >>> unknown("sdg", ["sgd", "adamw"], "optimizer")
    "unknown optimizer 'sdg': did you mean 'sgd'? Known: adamw, sgd"
    """
    near = nearest(name, known)
    hint = f"did you mean {near!r}? " if near else ""
    return f"unknown {what} {brief(name)}: {hint}Known: {', '.join(sorted(known))}"


def nearest(name: object, known: Iterable[str], least: float = 0.5) -> str | None:
    """The known name that is most like this one, None where none is as much alike as ``least``, 0 to 1.

    >>> nearest("Maxpool", ["avg_pool", "max_pool"]), nearest("banana", ["conv"])
    ('max_pool', None)
    """
    small = {str(option).lower(): option for option in known}
    near = difflib.get_close_matches(str(name).lower(), small, n=1, cutoff=least)
    return small[near[0]] if near else None


def brief(value: object) -> str:
    """A value as it reads within an error: never longer than a line.

    >>> brief("digits"), brief(0.1), brief([1, 2]), brief(nearest), brief(dict)
    ("'digits'", '0.1', 'a list', 'the function nearest', 'the class dict')
    """
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', '?')}"
    short = isinstance(value, str | int | float | complex | bytes | type(None))
    if short and len(repr(value)) <= 80:
        return repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def lacking(module: str, known: Iterable[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that suggests the nearest of its names.

    Args:
        module: its ``__name__``.
        known: the names that people use.
    """

    def getattribute(name: str) -> Any:
        near = None if name.startswith("_") else nearest(name, known, least=0.6)
        hint = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return getattribute


def check_keywords(function: Callable[..., Any], given: Iterable[str], elsewhere: Mapping[str, str]) -> None:
    """Hold keywords against those that a function takes.

    Args:
        function: which is to be called.
        given: the keywords.
        elsewhere: what to say of keywords that are a setting of something else.

    Raises:
        TypeError: it does not take one; the text says where that goes, or suggests the nearest, or lists all.

    >>> check_keywords(sorted, ["key", "revers"], {})
    Traceback (most recent call last):
    TypeError: sorted() got an unexpected keyword argument 'revers': did you mean 'reverse'?
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = [name for name in known if name != "self"]
    for name in given:
        if name in known:
            continue
        near = nearest(name, known)
        hint = elsewhere.get(name) or (
            f"did you mean {near!r}?" if near else f"it takes {', '.join(known) or 'none'}"
        )
        called = function.__qualname__.removesuffix(".__init__")
        raise TypeError(f"{called}() got an unexpected keyword argument {name!r}: {hint}")


def hinting(**elsewhere: str) -> Callable[[F], F]:
    """Make a function tell of a keyword that it does not take as `check_keywords` does.

    Args:
        elsewhere: what to say of keywords that are a setting of something else.
    """

    def decorate(function: F) -> F:
        known = set(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: Any, **settings: Any) -> Any:
            if not settings.keys() <= known:
                check_keywords(function, settings, elsewhere)
            return function(*args, **settings)

        return cast(F, call)

    return decorate
