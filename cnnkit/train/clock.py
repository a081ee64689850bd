"""Three clocks that never run together: compiling, training, evaluating."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from cnnkit.layers import compiler_options


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
        self._lapped = dict(self.seconds)
        self._inside = 0.0

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Add the time of a ``with`` block to one clock, less what is measured inside it.

        The block waits for its own device work.
        """
        begin, inside = time.perf_counter(), self._inside
        try:
            yield
        finally:
            took = time.perf_counter() - begin
            self.seconds[kind] += took - (self._inside - inside)
            self._inside = inside + took

    def lap(self) -> dict[str, float]:
        """Seconds by clock since the last lap, as ``train_seconds`` …, and in all, as ``train_total`` …"""
        since = {f"{kind}_seconds": now - self._lapped[kind] for kind, now in self.seconds.items()}
        self._lapped = dict(self.seconds)
        return since | {f"{kind}_total": now for kind, now in self.seconds.items()}

    def reset(self) -> None:
        """Stand at 0."""
        self.seconds = dict.fromkeys(self.KINDS, 0.0)
        self._lapped = dict(self.seconds)

    def facts(self) -> dict[str, dict[str, float]]:
        """What a checkpoint keeps of the clocks."""
        return {"seconds": dict(self.seconds), "lapped": dict(self._lapped)}

    def restore(self, facts: dict[str, dict[str, float]]) -> None:
        """Go on from what `facts` gave; what was measured in this process before is added."""
        for kind in self.KINDS:
            self.seconds[kind] += facts["seconds"][kind]
            self._lapped[kind] = facts["lapped"][kind]


class Compiled:
    """A jitted function compiled on its own clock, once for each set of shapes.

    Args:
        function: to be jitted.
        clocks: whose ``compile`` runs meanwhile.
        donate: positions of arguments whose buffers the result may take over.
    """

    def __init__(self, function: Callable[..., Any], clocks: Clocks, donate: tuple[int, ...] = ()) -> None:
        self._jitted = jax.jit(function, donate_argnums=donate, compiler_options=compiler_options())
        self._clocks = clocks
        self._programs: dict[Any, Any] = {}
        self._on_the_way: dict[Any, threading.Event] = {}
        self._turn = threading.Lock()
        self.compilations = 0

    def __call__(self, *args: Any) -> Any:
        return self.program(*args)(*args)

    def program(self, *args: Any) -> Any:
        """The executable for arguments of these shapes, compiled if it is not there yet."""
        signature = _signatures(args)
        if signature not in self._programs:
            with self._clocks.measure("compile"):
                self._once(signature, args)
        return self._programs[signature]

    def needs(self) -> int:
        """Bytes that the largest of its programs holds while it runs: arguments, results and what lies between."""
        return max(map(held, self._programs.values()), default=0)

    def prepare(self, *args: Any) -> None:
        """Compile for arguments like these, off the clock: beside something else, in a thread of its own.

        Who needs the program meanwhile waits for it.

        Args:
            args: arrays, or what has their shapes, dtypes and shardings.
        """
        self._once(_signatures(args), args)

    def _once(self, signature: Any, args: Any) -> None:
        """Compile it, or wait for the thread that does."""
        with self._turn:
            if signature in self._programs:
                return
            other = self._on_the_way.get(signature)
            if other is None:
                mine = self._on_the_way[signature] = threading.Event()
        if other is not None:
            other.wait()
            self._once(
                signature, args
            )  # what failed in the other thread fails again in this one, and is told here
            return
        try:
            self._compile(signature, args)
        finally:
            with self._turn:
                del self._on_the_way[signature]
            mine.set()

    def _compile(self, signature: Any, args: Any) -> None:
        self._programs[signature] = self._jitted.lower(*args).compile()
        self.compilations += 1


def held(program: Any) -> int:
    """Bytes of a compiled program's arguments, results and temporaries, each counted once; 0 if it does not say."""
    sizes = program.memory_analysis()
    if sizes is None:
        return 0
    shared = sizes.alias_size_in_bytes  # results that lie where arguments did
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + sizes.output_size_in_bytes - shared


def _signatures(args: Any) -> Any:
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(_signature(leaf) for leaf in leaves)


def _signature(leaf: Any) -> Any:
    return (getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf)), getattr(leaf, "sharding", None))
