"""The bipartite graph: operations and blobs in turn, each operation on a resource."""

import difflib
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cnnkit.names import choose

KINDS = {
    "compute": "a device's compute",
    "copy_in": "copies to a device",
    "copy_out": "copies from a device",
    "network": "the network",
    "cpu": "the CPU pool",
}


class GraphError(ValueError):
    """A graph that cannot be run: a cycle, a missing input, a blob written twice."""


class Resource(NamedTuple):
    """Where an operation runs: a kind of hardware, and which one of that kind.

    >>> str(resource("compute:1")), str(resource("cpu"))
    ('compute:1', 'cpu')
    """

    kind: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}" if self.number else self.kind


def resource(name: str | Resource) -> Resource:
    """The resource of that name: compute, copy_in, copy_out, network or cpu, with ``:number`` beyond the first.

    Raises:
        ValueError: an unknown kind, or a number that is no whole number.
    """
    if isinstance(name, Resource):
        return name
    kind, _, number = name.partition(":")
    choose(kind, KINDS, "resource")
    if number and not number.isdecimal():
        raise ValueError(f"resource {name!r}: after the colon stands a whole number, e.g. {kind}:1")
    return Resource(kind, int(number or 0))


@dataclass(frozen=True)
class Blob:
    """What operations read and write: a name, and its shape and dtype where they are known."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes; 0 where the shape is not known."""
        if self.shape is None or self.dtype is None:
            return 0
        return math.prod(self.shape) * _itemsize(self.dtype)


@dataclass(frozen=True, eq=False)
class Op:
    """What is done: a function from blobs to blobs, and where it runs.

    Args:
        name: unique in its graph.
        run: takes the inputs in order; returns the output, a tuple of several, or anything for none.
        inputs: names of the blobs it reads.
        outputs: names of the blobs it writes.
        on: the resource it runs on.
        kind: what sort of operation, for drawings and summaries.
        cost: seconds it takes, where known.
        flops: floating-point operations, for an estimate.
        wait: it is done when its outputs' arrays are computed, not when the work has been dispatched.
        ordered: in a stream, it takes one item after the other, in order.
        ahead: in a stream, by how many items it may be ahead of the consumer at most.
    """

    name: str
    run: Callable[..., Any] | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    on: Resource
    kind: str = ""
    cost: float | None = None
    flops: float = 0.0
    wait: bool = False
    ordered: bool = True
    ahead: int | None = None


class Graph:
    """Operations and blobs; an edge is a blob that an operation reads or writes.

    Args:
        name: as it reads in errors and drawings.
        inputs: blobs that are given from outside, names or `Blob`.
        outputs: names of the blobs that are handed out; by default those that no operation reads.

    The bipartite graph of Purine, on which the thesis builds its scheduler.

    >>> g = Graph("sum of squares", inputs=["a", "b"])
    >>> g.add("square a", lambda a: a * a, "a", "aa")
    'aa'
    >>> g.add("square b", lambda b: b * b, "b", "bb")
    'bb'
    >>> g.add("sum", lambda x, y: x + y, ["aa", "bb"], "c")
    'c'
    >>> g.before("sum"), g.outputs
    (('square a', 'square b'), ('c',))
    """

    def __init__(
        self,
        name: str = "graph",
        inputs: Iterable[str | Blob] = (),
        outputs: Sequence[str] | None = None,
    ):
        self.name = name
        self.ops: dict[str, Op] = {}
        self.blobs: dict[str, Blob] = {}
        self.inputs: tuple[str, ...] = ()
        self.constants: dict[str, Any] = {}
        self.plans: dict[Any, Any] = {}
        self._outputs = None if outputs is None else tuple(outputs)
        self._writer: dict[str, str] = {}
        self._readers: dict[str, list[str]] = {}
        for blob in inputs:
            self.input(blob)

    def input(self, blob: str | Blob, value: Any = None) -> str:
        """Declares a blob that comes from outside; with a value it is a constant that needs no feeding."""
        blob = _blob(blob)
        if blob.name in self._writer:
            raise GraphError(
                f"{self.name}: blob {blob.name!r} is written by operation {self._writer[blob.name]!r} "
                "and cannot be an input too; give one of them another name"
            )
        self.blobs[blob.name] = blob
        if value is not None:
            self.constants[blob.name] = value
        elif blob.name not in self.inputs:
            self.inputs = (*self.inputs, blob.name)
        return blob.name

    def add(
        self,
        name: str,
        run: Callable[..., Any] | None,
        inputs: str | Sequence[str] = (),
        outputs: str | Blob | Sequence[str | Blob] | None = None,
        *,
        on: str | Resource = "cpu",
        kind: str = "",
        cost: float | None = None,
        flops: float = 0.0,
        wait: bool | None = None,
        ordered: bool = True,
        ahead: int | None = None,
    ) -> Any:
        """Adds an operation and returns the name of its output, a tuple of names if it has several.

        Args:
            name: unique in the graph.
            run: the function; None in a graph that is only looked at.
            inputs: blobs it reads, in the order of the function's arguments.
            outputs: blobs it writes; by default one, named as the operation. ``()`` for none.
            on: the resource, e.g. ``"cpu"``, ``"compute:1"``, ``"copy_in"``, ``"network"``.
            kind: what sort of operation, for drawings.
            cost: seconds, where known.
            flops: floating-point operations.
            wait: whether it is done only when its arrays are computed; by default where its resource
                belongs to a device, whose work JAX dispatches without waiting.
            ordered: in a stream, whether it takes one item after the other; False lets a pool take several
                at once.
            ahead: in a stream, how many items it may be ahead of the consumer; by default the stream's depth.

        Raises:
            GraphError: the name is taken, or an output has a writer already.
        """
        inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        blobs = _blobs(name if outputs is None else outputs)
        where = resource(on)
        if name in self.ops:
            raise GraphError(f"{self.name}: there is an operation {name!r} already; names must differ")
        if ahead is not None and ahead < 1:
            raise ValueError(f"operation {name!r}: ahead must be at least 1 item, got {ahead}")
        self._claim(name, blobs)
        for blob in inputs:
            self.blobs.setdefault(blob, Blob(blob))
            if name not in self._readers.setdefault(blob, []):
                self._readers[blob].append(name)
        if wait is None:
            wait = where.kind in ("compute", "copy_in", "copy_out")
        written = tuple(blob.name for blob in blobs)
        self.ops[name] = Op(name, run, inputs, written, where, kind, cost, flops, wait, ordered, ahead)
        return written[0] if len(written) == 1 else written

    def _claim(self, name: str, blobs: Sequence[Blob]) -> None:
        for i, blob in enumerate(blobs):
            other = name if blob in blobs[:i] else self._writer.get(blob.name)
            if other is None and (blob.name in self.inputs or blob.name in self.constants):
                raise GraphError(
                    f"{self.name}: blob {blob.name!r} is an input of the graph and would be written by "
                    f"operation {name!r}; give one of them another name"
                )
            if other is not None:
                raise GraphError(
                    f"{self.name}: blob {blob.name!r} would be written twice, by operation {other!r} and by "
                    f"{name!r}; a blob has one writer, so give one of them another name"
                )
        for blob in blobs:
            self._writer[blob.name] = name
            self.blobs[blob.name] = blob

    def writer(self, blob: str) -> str | None:
        """The operation that writes the blob; None for an input."""
        return self._writer.get(blob)

    def readers(self, blob: str) -> tuple[str, ...]:
        """The operations that read the blob."""
        return tuple(self._readers.get(blob, ()))

    def before(self, op: str) -> tuple[str, ...]:
        """The operations whose outputs this one reads."""
        writers = (self._writer.get(blob) for blob in self.ops[op].inputs)
        return tuple(dict.fromkeys(w for w in writers if w is not None))

    def after(self, op: str) -> tuple[str, ...]:
        """The operations that read this one's outputs."""
        return tuple(dict.fromkeys(r for blob in self.ops[op].outputs for r in self.readers(blob)))

    def edges(self) -> dict[str, list[str]]:
        """For each operation, the operations that read its outputs, in the order they were added."""
        after: dict[str, list[str]] = {name: [] for name in self.ops}
        for name, op in self.ops.items():
            for blob in op.inputs:
                writer = self._writer.get(blob)
                # Readings of one operation come one after the other, so the last entry tells.
                if writer is not None and after[writer][-1:] != [name]:
                    after[writer].append(name)
        return after

    @property
    def outputs(self) -> tuple[str, ...]:
        """The blobs handed out."""
        if self._outputs is not None:
            return self._outputs
        return tuple(blob for blob in self._writer if not self._readers.get(blob))

    @outputs.setter
    def outputs(self, names: Sequence[str]) -> None:
        self._outputs = tuple(names)

    def order(self) -> list[str]:
        """The operations, each after those it waits for; among equals, in the order they were added.

        Raises:
            GraphError: a missing input or a cycle; the text names the operations and blobs.
        """
        self._check_inputs()
        after, names = self.edges(), list(self.ops)
        place = {name: i for i, name in enumerate(names)}
        left = dict.fromkeys(names, 0)
        for later in itertools.chain.from_iterable(after.values()):
            left[later] += 1
        ready = [place[name] for name, n in left.items() if n == 0]
        done = []
        while ready:
            name = names[heapq.heappop(ready)]
            done.append(name)
            for later in after[name]:
                left[later] -= 1
                if left[later] == 0:
                    heapq.heappush(ready, place[later])
        if len(done) < len(names):
            raise GraphError(f"{self.name}: {self._cycle({n for n in names if left[n] > 0})}")
        return done

    def _check_inputs(self) -> None:
        known = {*self.inputs, *self.constants, *self._writer}
        wrong = []
        for blob in dict.fromkeys([*self._readers, *(self._outputs or ())]):
            if blob in known:
                continue
            who = " and ".join(f"operation {r!r}" for r in self.readers(blob)) or "the list of outputs"
            near = difflib.get_close_matches(blob, known, n=1, cutoff=0.6)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            wrong.append(f"blob {blob!r}, read by {who}, is missing{hint}")
        if wrong:
            raise GraphError(
                f"{self.name}: {'; '.join(wrong)}; let an operation write it, or declare it with input()"
            )

    def _cycle(self, stuck: set[str]) -> str:
        # Some stuck operations only stand behind a cycle; walking backwards cannot leave it.
        name, path = min(stuck, key=list(self.ops).index), []
        while name not in path:
            path.append(name)
            name = next(b for b in self.before(name) if b in stuck)
        circle = [*path[path.index(name) :], name][::-1]
        through = [
            next(b for b in self.ops[y].inputs if self.writer(b) == x) for x, y in itertools.pairwise(circle)
        ]
        return (
            f"operations wait for each other in a cycle, {' → '.join(map(repr, circle))} "
            f"(through {', '.join(f'blob {b!r}' for b in through)}); read one of these blobs as an input "
            "and carry it over from the item before, or take it away"
        )

    def __len__(self) -> int:
        return len(self.ops)

    def __repr__(self) -> str:
        resources = sorted({str(op.on) for op in self.ops.values()})
        return f"<Graph {self.name!r}: {len(self.ops)} operations, {len(self.blobs)} blobs, on {', '.join(resources)}>"


def _itemsize(dtype: str) -> int:
    try:
        return np.dtype(dtype).itemsize
    except TypeError:  # a dtype of JAX's own, such as a random key's
        return 8


def _blob(blob: str | Blob) -> Blob:
    return blob if isinstance(blob, Blob) else Blob(blob)


def _blobs(blobs: str | Blob | Sequence[str | Blob]) -> list[Blob]:
    if isinstance(blobs, str | Blob):
        return [_blob(blobs)]
    return [_blob(b) for b in blobs]
