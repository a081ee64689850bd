"""Three clocks that never run together: compiling, training, evaluating."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax


class Clocks:
    """Seconds spent compiling, training and evaluating; device work is waited for before a clock stops.

    >>> clocks = Clocks()
    >>> with clocks.measure("train"):
    ...     pass
    >>> clocks.seconds["train"] < 1
    True
    """

    KINDS = ("compile", "train", "evaluate")

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(self.KINDS, 0.0) | (seconds or {})

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Add the time of a ``with`` block to one clock; the block waits for its own device work."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[kind] += time.perf_counter() - begin


class Compiled:
    """A jitted function compiled on its own clock, once for each set of shapes.

    Args:
        function: to be jitted.
        clocks: whose ``compile`` runs meanwhile.
        donate: positions of arguments whose buffers the result may take over.
    """

    def __init__(self, function: Callable[..., Any], clocks: Clocks, donate: tuple[int, ...] = ()) -> None:
        self._jitted = jax.jit(function, donate_argnums=donate)
        self._clocks = clocks
        self._programs: dict[Any, Any] = {}
        self.compilations = 0

    def __call__(self, *args: Any) -> Any:
        return self.program(*args)(*args)

    def program(self, *args: Any) -> Any:
        """The executable for arguments of these shapes, compiled if it is not there yet."""
        leaves, structure = jax.tree.flatten(args)
        signature = (structure, tuple(_signature(leaf) for leaf in leaves))
        if signature not in self._programs:
            with self._clocks.measure("compile"):
                self._programs[signature] = self._jitted.lower(*args).compile()
            self.compilations += 1
        return self._programs[signature]


def _signature(leaf: Any) -> Any:
    return (getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf)), getattr(leaf, "sharding", None))
