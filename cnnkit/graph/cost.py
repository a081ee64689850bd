"""Seconds of operations: estimated from FLOPs and bytes, or measured one by one."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

import jax

from cnnkit.graph.bigraph import Graph, GraphError


def estimate(
    graph: Graph,
    *,
    flops: float = 5e10,
    memory: float = 1e10,
    copy: float = 1e10,
    network: float = 1.25e8,
    dispatch: float = 5e-6,
    latency: float = 1e-4,
) -> dict[str, float]:
    """Seconds of each operation by the roofline: max(FLOPs / flops, bytes / memory) + dispatch.

    Copies take bytes written / copy; operations on the network bytes read / network + latency.

    Args:
        graph: a graph whose blobs have shapes, as from a function or a net.
        flops: floating-point operations a second.
        memory: bytes a second, read and written.
        copy: bytes a second between host and device.
        network: bytes a second over a link (1.25e8 is 1 Gbit/s).
        dispatch: seconds it costs to start an operation.
        latency: seconds of a message of no length.
    """
    costs = {}
    for name, op in graph.ops.items():
        read = sum(graph.blobs[b].nbytes for b in dict.fromkeys(op.inputs))
        written = sum(graph.blobs[b].nbytes for b in op.outputs)
        if op.on.kind == "network":
            costs[name] = read / network + latency
        elif op.on.kind in ("copy_in", "copy_out"):
            costs[name] = written / copy + dispatch
        else:
            costs[name] = max(op.flops / flops, (read + written) / memory) + dispatch
    return costs


def measure(graph: Graph, feeds: Mapping[str, Any], repeats: int = 3) -> dict[str, float]:
    """Seconds of each operation, run one after the other, outputs waited for; median of the repeats.

    Args:
        graph: the graph.
        feeds: values of its inputs.
        repeats: timed runs, after one that compiles.
    """
    taken: dict[str, list[float]] = {name: [] for name in graph.ops}
    for i in range(repeats + 1):
        for name, seconds in _sequence(graph, feeds)[1].items():
            if i:
                taken[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def evaluate(graph: Graph, feeds: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The graph's outputs, its operations called one after the other on this thread.

    >>> g = Graph(inputs=["x"])
    >>> _ = g.add("double", lambda x: 2 * x, "x", "y")
    >>> evaluate(g, {"x": 3})
    {'y': 6}
    """
    values = _sequence(graph, feeds or {})[0]
    return {name: values[name] for name in graph.outputs}


def split(graph: Graph, name: str, made: Any) -> tuple[Any, ...]:
    """What an operation returned, as one value an output.

    Raises:
        ValueError: it has several outputs, and returned something other than a tuple of that many.
    """
    outputs = graph.ops[name].outputs
    if len(outputs) == 1:
        return (made,)
    if not outputs:
        return ()
    if not isinstance(made, tuple | list) or len(made) != len(outputs):
        got = f"{len(made)} values" if isinstance(made, tuple | list) else type(made).__name__
        raise ValueError(f"it writes {len(outputs)} blobs ({', '.join(outputs)}) and returned {got}")
    return tuple(made)


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The graph's constants and feeds together.

    Raises:
        GraphError: an input that is not fed, or a feed that is no input; by name.
    """
    missing = [name for name in graph.inputs if name not in feeds]
    extra = [name for name in feeds if name not in graph.inputs and name not in graph.constants]
    if missing or extra:
        said = [f"{', '.join(map(repr, missing))} must be fed"] * bool(missing)
        said += [f"{', '.join(map(repr, extra))} is no input"] * bool(extra)
        raise GraphError(
            f"{graph.name}: {'; '.join(said)}; its inputs are {', '.join(graph.inputs) or 'none'}"
        )
    return {**graph.constants, **feeds}


def _sequence(graph: Graph, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    values, seconds = check_feeds(graph, feeds), {}
    for name in graph.order():
        op = graph.ops[name]
        if op.run is None:
            raise GraphError(
                f"{graph.name}: operation {name!r} has no function; it can be looked at, not run"
            )
        start = time.perf_counter()
        made = jax.block_until_ready(op.run(*[values[b] for b in op.inputs]))
        seconds[name] = time.perf_counter() - start
        values.update(zip(op.outputs, split(graph, name, made)))
    return values, seconds
