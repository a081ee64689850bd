"""Whether a layer is being traced inside a compiled loop, where some algorithms are slower than outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_INSIDE: ContextVar[bool] = ContextVar("cnnkit_inside_loop", default=False)


@contextmanager
def in_loop() -> Iterator[None]:
    """What is traced in this ``with`` block will run inside a loop.

    >>> with in_loop():
    ...     inside_loop()
    True
    """
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def inside_loop() -> bool:
    """Whether the layer traced now will run inside a loop."""
    return _INSIDE.get()
