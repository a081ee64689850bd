"""Workers made slower than they are: unequal clusters on equal devices."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.parallel.stamp import number_from

Step = Callable[[Any, Any], Any]

_PARTS = 60
"""Speeds are taken to the nearest fraction of at most this many parts."""


@dataclass(frozen=True)
class Emulated:
    """How much slower each worker is made; `emulate` checks and makes it.

    Args:
        speeds: of each worker, above 0 and at most 1: the part of its true speed that it keeps.
        waits: whether a slow worker waits, rather than doing real work that is thrown away.
        step_seconds: how long a step takes at speed 1, where it waits.
    """

    speeds: tuple[float, ...]
    waits: bool = False
    step_seconds: float | None = None

    def describe(self) -> dict[str, Any]:
        """The settings as plain data, for a record."""
        return {"speeds": list(self.speeds), "waits": self.waits, "step_seconds": self.step_seconds}

    def extra(self, step: int, worker: int) -> int:
        """How many times over a worker does this step's work again: ⌊(j+1)·e⌋ − ⌊j·e⌋ with e = 1/speed − 1.

        Whole numbers whose mean over the steps is e, so a speed of 0.7 does 3 steps in 7 twice.

        >>> emulate([1, 0.7]).extra(step=4, worker=1)
        1
        """
        more = _more(self.speeds[worker])
        return (step + 1) * more.numerator // more.denominator - step * more.numerator // more.denominator

    def slowed(self, step: Step, worker: jax.Array) -> Step:
        """The same step, taking as long as it would at each worker's speed; its results do not change.

        Args:
            step: ``step(i, carry) -> carry``, as `jax.lax.fori_loop` takes it; i is a mini-batch's number.
            worker: this worker's index, ``lax.axis_index(axis)``.

        Returns:
            A step of the same form, for use inside `jax.shard_map`.

        Raises:
            ValueError: speeds are not one for each worker.
            RuntimeError: ``waits`` on an accelerator, where a program cannot wait for the host.
        """
        if self.waits:
            return self._waiting(step, worker)
        more = [_more(speed) for speed in self.speeds]
        above = jnp.asarray([m.numerator for m in more])[worker]
        below = jnp.asarray([m.denominator for m in more])[worker]

        def slow(i: Any, carry: Any) -> Any:
            result = step(i, carry)
            again = (i + 1) * above // below - i * above // below
            never = again < 0

            def over_again(_: Any, thrown_away: Any) -> Any:
                # What an inner step shares with the one before would be moved out of the loop and done once:
                # so it goes on from the result, and its number might change as far as XLA can see.
                number, state = thrown_away
                return jnp.where(never, number + 1, number), step(number, state)

            _, wasted = lax.fori_loop(0, again, over_again, (i + 0 * again, result))
            return _depending(result, never, wasted)

        return slow

    def _waiting(self, step: Step, worker: jax.Array) -> Step:
        if jax.default_backend() != "cpu":
            raise RuntimeError(
                f"emulate(waits=True) works on CPU only, this is {jax.default_backend()}: "
                "leave waits out, and slow workers do real work instead"
            )
        more = [float(self.step_seconds or 0) * (1 / speed - 1) for speed in self.speeds]
        seconds = jnp.asarray(more, jnp.float32)[worker]

        def slow(i: Any, carry: Any) -> Any:
            result = step(i, carry)
            # The callback takes a number from the result, so that it begins when the step has ended.
            waited = lax.cond(seconds > 0, _wait, lambda *_: jnp.int32(0), seconds, number_from(result))
            return _depending(result, waited < 0, result)

        return slow


def emulate(speeds: Sequence[float], waits: bool = False, step_seconds: float | None = None) -> Emulated:
    """Workers of unequal speed, on devices of equal speed.

    A worker of speed s takes 1/s times as long for each local step: it does the step's work over again,
    (1/s − 1) times on average, and throws the results away. With ``waits`` it sleeps for
    (1/s − 1) · step_seconds instead, which lets several workers share a core; on CPU only.

    Args:
        speeds: of each worker, above 0 and at most 1.
        waits: sleep rather than work.
        step_seconds: how long a step takes at speed 1; needed with ``waits``.

    Raises:
        ValueError: a speed out of range, or step_seconds missing or without ``waits``.

    >>> emulate([1, 0.5]).speeds
    (1.0, 0.5)
    """
    given = tuple(float(speed) for speed in speeds)
    if not given or not all(1 / _PARTS <= speed <= 1 for speed in given):
        raise ValueError(
            f"speeds to emulate are between 1/{_PARTS} and 1, one for each worker, got {list(speeds)}"
        )
    if waits and not (step_seconds and step_seconds > 0):
        raise ValueError("emulate(waits=True) needs step_seconds, how long a local step takes at speed 1")
    if step_seconds is not None and not waits:
        raise ValueError("emulate takes step_seconds with waits=True only: real work takes its own time")
    return Emulated(given, waits, step_seconds)


def _more(speed: float) -> Fraction:
    """1/speed − 1: how much work is done over again."""
    return 1 / Fraction(speed).limit_denominator(_PARTS) - 1


def _wait(seconds: jax.Array, _: jax.Array) -> jax.Array:
    return jax.pure_callback(_sleep, jax.ShapeDtypeStruct((), jnp.int32), seconds, _)


def _sleep(seconds: Any, _: Any) -> np.ndarray:
    time.sleep(float(seconds))
    return np.zeros((), np.int32)


def _depending(result: Any, never: jax.Array, work: Any) -> Any:
    """The result, bit for bit, in a form from which XLA cannot take out the work.

    ``never`` is false whenever the program runs, but not as far as the compiler can see.
    """
    leaves, treedef = jax.tree.flatten(result)
    # The smallest leaf, since choosing costs a pass over it.
    smallest = min((i for i, leaf in enumerate(leaves) if jnp.size(leaf)), key=lambda i: jnp.size(leaves[i]))
    leaf = leaves[smallest]
    leaves[smallest] = jnp.where(never, number_from(work).astype(leaf.dtype), leaf)
    return jax.tree.unflatten(treedef, leaves)
