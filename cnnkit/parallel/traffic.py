"""What an exchange sends: bytes out of and into every worker, hops, and collectives of a traced function."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params

from cnnkit.names import choose
from cnnkit.parallel.exchange import ALGORITHMS, tree_levels
from cnnkit.parallel.payload import PAYLOADS

# These name an axis, but nothing crosses it.
_SILENT = frozenset({"axis_index", "axis_size", "pvary", "pcast", "reshard", "shard_map"})
_LOOPS = frozenset({"while", "scan"})


@dataclass(frozen=True)
class Traffic:
    """What one exchange sends.

    Args:
        sent: bytes out of each worker, a number for each worker.
        received: bytes into each worker.
        serial: bytes that pass one after another: the largest message of every hop, added up.
        hops: messages that wait for one another; each costs one latency.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]
    serial: int
    hops: int

    @property
    def busiest(self) -> int:
        """Bytes over the busiest link, in the direction in which it carries more."""
        return max(*self.sent, *self.received)

    @property
    def total(self) -> int:
        """Bytes over all links: what a medium that all workers share must carry."""
        return sum(self.sent)


def sent_bytes(n_values: int, workers: int, how: str = "psum", payload: str = "float32") -> Traffic:
    """What an exchange of n values between W workers sends.

    With m(n) the bytes of a message of n values (float32 4n, bfloat16 2n, int8 260·⌈n/256⌉) and
    s = ⌈n/W⌉ the values of a segment (int8: up to a whole block of 256):

        psum, ring   2(W−1)·m(s) out of and into each worker, in 2(W−1) hops
        tree         m(n) for each neighbour in a binomial tree, once up and once down; 2⌈log₂W⌉ hops
        redundant    (W−1)·m(n) out of and into each worker, in 1 hop
        server       (W−1)·m(n) out of and into worker 0, m(n) for the others; 2(W−1) hops

    For ``psum`` this is what NCCL and Gloo do with a large array; XLA is free to do better. Gloo, on CPU,
    lets what two workers send to each other take turns, a psum excepted: between 2 workers, ``ring`` and
    ``redundant`` take longer there than a full-duplex link would need for these bytes.

    Args:
        n_values: floats in the tree.
        workers: W ≥ 1; with one worker nothing is sent.
        how, payload: as in `exchange`.

    >>> sent_bytes(1_000_000, 4, "ring").sent
    (6000000, 6000000, 6000000, 6000000)
    >>> sent_bytes(1_000_000, 4, "server").sent
    (12000000, 4000000, 4000000, 4000000)
    """
    choose(how, ALGORITHMS, "exchange")
    form = choose(payload, PAYLOADS, "payload")
    if workers == 1:
        return Traffic((0,), (0,), 0, 0)
    unit = workers * form.unit
    padded = math.ceil(n_values / unit) * unit
    whole, segment = form.size(padded), form.size(padded // workers)
    if how in ("psum", "ring"):
        each = 2 * (workers - 1) * segment
        return Traffic((each,) * workers, (each,) * workers, each, 2 * (workers - 1))
    if how == "redundant":
        each = (workers - 1) * whole
        return Traffic((each,) * workers, (each,) * workers, each, 1)
    if how == "server":
        each_way = ((workers - 1) * whole,) + (whole,) * (workers - 1)
        return Traffic(each_way, each_way, 2 * (workers - 1) * whole, 2 * (workers - 1))
    levels = tree_levels(workers)
    neighbours = [0] * workers
    for child, parent in (pair for pairs in levels for pair in pairs):
        neighbours[child] += 1
        neighbours[parent] += 1
    each_way = tuple(whole * count for count in neighbours)
    return Traffic(each_way, each_way, 2 * len(levels) * whole, 2 * len(levels))


def collectives(fn: Callable[..., Any], *args: Any) -> list[tuple[str, tuple[str, ...], Any]]:
    """Every collective of a function: its name, the operations around it, and its jaxpr equation.

    Args:
        fn: any function that JAX can trace, jitted, mapped or plain.
        args: arguments, or `jax.ShapeDtypeStruct` in their place.
    """
    found: list[tuple[str, tuple[str, ...], Any]] = []

    def walk(jaxpr: Jaxpr, around: tuple[str, ...]) -> None:
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name not in _SILENT and _axis_names(eqn.params):
                found.append((name, around, eqn))
            for inner in jaxprs_in_params(eqn.params):
                walk(inner, (*around, name))

    walk(jax.make_jaxpr(fn)(*args).jaxpr, ())
    return found


def collectives_in_loops(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The collectives that a function has inside loops: none, in a round of local steps.

    A collective in the body of a loop hangs when workers run it different numbers of times, and
    makes every step wait for all workers when they do not. JAX puts one there by itself where a
    gradient is taken with respect to parameters that are replicated over the axis.

    Args:
        fn, args: as in `collectives`.

    Returns:
        For each one, its name and where it stands, as ``"psum_invariant in shard_map/while"``.
    """
    return [
        f"{name} in {'/'.join(around)}" for name, around, _ in collectives(fn, *args) if _LOOPS & set(around)
    ]


def _axis_names(params: dict[str, Any]) -> list[str]:
    values = [params.get(key) for key in ("axes", "axis_name", "axis_names")]
    flat = [item for value in values for item in (value if isinstance(value, tuple | list) else (value,))]
    return [item for item in flat if isinstance(item, str)]
