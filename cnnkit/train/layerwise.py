"""Synchronous SGD layer by layer: each parameter's exchange starts as soon as its gradient exists, as in Purine.

A step's graph has, for each layer, a forward and a backward operation, and for each parameter an exchange and
an update. The scheduler runs the computing on one queue and the exchanges on another, so that the exchange of
the last layers hides behind the back-propagation through the first ones: wait-free back-propagation. The next
step's forward pass waits for no more than the parameters that it reads, so that what is still under way then
hides behind it. Two things make room for that: large parameters travel in pieces, and the pieces take turns in
an order that all processes share, those of the first layers first once they are there.

The numbers are those of ``Run(..., mode="accumulate", fetch=1)`` to rounding, whatever overlaps.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from cnnkit.graph import Blob, Graph, Op, Scheduler, Timeline, from_net, measure
from cnnkit.names import choose
from cnnkit.parallel import workers
from cnnkit.parallel.emulate import Emulated
from cnnkit.parallel.exchange import ALGORITHMS, exchange
from cnnkit.parallel.workers import AXIS, Workers
from cnnkit.train.apart import join, parts, pieces, split, turns
from cnnkit.train.round import varying
from cnnkit.train.scheduled import communicate
from cnnkit.train.step import Plan, Source, mini_batch
from cnnkit.train.task import MiniBatch, Model, Task

Item = tuple[MiniBatch, float, float]


class Layerwise:
    """Trains a model on this process's worker, in step with the other processes' workers.

    Args:
        task: what is trained, in float32.
        model: where it begins, the same in all processes.
        shape: of the images, (H, W, C).
        batch: examples that one worker takes in a step.
        team: the mesh, with one worker in each process; that of all processes when left out.
        how: ``psum``, ``ring``, ``tree``, ``redundant`` or ``server``.
        piece: floats that travel at once at most; 0 sends each parameter whole.
        overlap: False runs one operation after the other, so that nothing hides anything.
        emulated: workers made slower by waiting, each of a step's operations by its share of the FLOPs.

    Raises:
        ValueError: several workers in this process, or settings that do not go together.

    In each of a job's processes, with a run that holds task and model:

        with Layerwise(run.task, run.model, data.shape, run.batch, how="ring") as one:
            for epoch in range(run.epochs):
                losses = list(one.steps(share(source, loop.lay_out(run, epoch), one.team)))

    Purine's parameter server runs one such exchange for each parameter; thesis, sections 5.1 and 5.4.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        shape: tuple[int, ...],
        batch: int,
        team: Workers | None = None,
        *,
        how: str = "psum",
        piece: int = 2**15,
        overlap: bool = True,
        emulated: Emulated | None = None,
    ) -> None:
        self.team = team or workers.make()
        _check(task, self.team, how, piece, emulated)
        self.task, self.batch, self.how, self.piece = (
            task.all_alike("training layer by layer"),
            batch,
            how,
            piece,
        )
        self.overlap = overlap
        self.waiting = _extra(emulated, self.team.local[0])
        self._step = from_net(task.net, _input(task, shape), batch, self._loss)
        self._parts = parts(task.net, model.params, jax.tree.leaves(self._step._params))
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._scheduler = Scheduler()
        self._line: Any = None
        self.costs: dict[str, float] = {}
        self.place(model)
        self.graph = self._build()

    # --- what people ask ----------------------------------------------------------------------------

    def place(self, model: Model) -> None:
        """Begin with this model."""
        opts = split(self.task.optimizer, model.params, model.opt)
        held = dict(zip((p.name for p in self._parts), jax.tree.leaves(model.params), strict=True))
        held |= {f"{p.name} optimizer": opt for p, opt in zip(self._parts, opts, strict=True)}
        held |= dict(zip(jax.tree.leaves(self._step._state), jax.tree.leaves(model.state), strict=True))
        # Committed to the device, as all later ones are: otherwise everything would be compiled twice.
        self._held = jax.device_put(held, self.team.mesh.local_devices[0])
        self._like = model

    @property
    def model(self) -> Model:
        """The model as it stands, the same in all processes."""
        held = self._held
        params = jax.tree.map(held.__getitem__, self._step._params)
        opts = [held[f"{p.name} optimizer"] for p in self._parts]
        state = jax.tree.map(held.__getitem__, self._step._state)
        return Model(params, state, join(self.task.optimizer, params, opts, self._like.opt))

    def steps(self, items: Iterable[Item], depth: int = 2) -> Iterator[float]:
        """Train, a step for each item; every process brings as many items.

        Args:
            items: (this worker's mini-batch, learning rate, momentum).
            depth: steps that may be under way; 1 begins one when the one before has ended, as Purine does.

        Yields:
            the mean loss over all workers' mini-batches, before the step.
        """
        feeds = ({"batch": b, "lr": np.float32(lr), "momentum": np.float32(m)} for b, lr, m in items)
        for made in self._flow(feeds, depth) if self.overlap else self._one_by_one(feeds):
            self._held = {into: made[out] for into, out in self._carried.items()}
            yield float(made["mean loss"])

    def tune(self, item: Item, repeats: int = 3) -> dict[str, float]:
        """Measure every operation by itself, and order the exchanges by it; the model stays as it is.

        All processes do it together; it also compiles everything.

        Args:
            item: as `steps` takes them.
            repeats: timed steps.

        Returns:
            seconds of each operation, the same in all processes: the slowest one's computing, the fastest
            one's exchanging, who has waited for nobody.
        """
        feeds = dict(zip(("batch", "lr", "momentum"), item)) | self._held
        own = measure(self.graph, feeds, repeats)
        rows = workers.gather(np.array([own[name] for name in sorted(own)], np.float32))
        for name, seen in zip(sorted(own), rows.T.tolist(), strict=True):
            self.costs[name] = min(seen) if self.graph.ops[name].on.kind == "network" else max(seen)
        self.graph = self._build()
        return self.costs

    def slowed(self, seconds: float) -> None:
        """Let each further step of this worker wait so long, its operations by their share of the FLOPs."""
        self.waiting = seconds
        self.graph = self._build()

    def alone(self, item: Item, kind: str) -> Callable[[], None]:
        """A call that does a step's operations of one kind, one after the other, and leaves the others out.

        Args:
            item: as `steps` takes them.
            kind: ``"compute"`` or ``"network"``; the network's takes all processes.
        """
        values = dict(zip(("batch", "lr", "momentum"), item)) | self._held
        for name in self.graph.order():
            self._into(values, self.graph.ops[name])
        names = [name for name in self.graph.order() if self.graph.ops[name].on.kind == kind]

        def run() -> None:
            for name in names:
                self._into(values, self.graph.ops[name])

        return run

    @property
    def timeline(self) -> Timeline:
        """What ran when in the latest steps, with overlap."""
        return Timeline([]) if self._line is None else self._line.timeline

    def close(self) -> None:
        """Let the threads go."""
        self._scheduler.close()

    def __enter__(self) -> "Layerwise":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the graph ----------------------------------------------------------------------------------

    def _build(self) -> Graph:
        """The graph of a step; what computes first, then the exchanges in the order in which they take turns."""
        graph, step = Graph(f"{self.task.net.name}, layer by layer"), self._step
        for name in ("batch", "lr", "momentum"):
            graph.input(name)
        for p in self._parts:
            graph.input(step.blobs[p.name])
            graph.input(f"{p.name} optimizer")
        for name in jax.tree.leaves(step._state):
            graph.input(step.blobs[name])
        computing = [op for op in step.ops.values() if op.kind != "exchange"]
        share = self.waiting / max(sum(op.flops for op in computing), 1.0)
        graph.add("mini-batch", self._mini_batch, "batch", ["x", "labels", "key", "examples"], on="compute")
        for op in computing:
            blobs = [step.blobs[name] for name in op.outputs]
            run, waits = op.run or _nothing, share * op.flops
            run = _waiting(run, waits) if waits else run
            graph.add(op.name, run, op.inputs, blobs, on=op.on, kind=op.kind, flops=op.flops)
        self._add_books(graph)
        cut = {p.name: pieces(p.size, self.piece) for p in self._parts}
        for name, i in self._turns(graph, cut):
            self._add_exchange(graph, name, i, *cut[name][i])
        for p in self._parts:
            self._add_update(graph, p, len(cut[p.name]))
        self._carried = {p.name: f"{p.name} after" for p in self._parts}
        self._carried |= {f"{p.name} optimizer": f"{p.name} optimizer after" for p in self._parts}
        made = zip(jax.tree.leaves(step._state), jax.tree.leaves(step._state_made), strict=True)
        self._carried |= {name: f"{after} of all" for name, after in made}
        graph.outputs = ["mean loss", *self._carried.values()]
        return graph

    def _add_books(self, graph: Graph) -> None:
        """The exchange of what is no parameter: losses, and what layers keep of their input."""
        before = jax.tree.leaves(self._step._state)
        after = jax.tree.leaves(self._step._state_made)

        def books(loss, examples, *held):
            olds, news = held[: len(before)], held[len(before) :]
            changes = [examples * (new - old).astype(jnp.float32) for old, new in zip(olds, news)]
            (loss, examples, changes), _ = exchange((loss, examples, changes), AXIS, self.how)
            moved = [_moved(old, change / examples) for old, change in zip(olds, changes)]
            return (loss / examples, *moved) if moved else loss / examples

        outs = ["mean loss all", *(f"{name} rows" for name in after)]
        inputs = ["loss", "examples", *before, *after]
        graph.add("books", self._together(("books",), books), inputs, outs, on="network", kind="exchange")
        rows = ["mean loss", *(f"{name} of all" for name in after)]
        first = jax.jit(lambda *rows: tuple(row[0] for row in rows) if before else rows[0][0])
        graph.add("hear", self._kept("hear", first), outs, rows, on="compute", kind="update")

    def _add_exchange(self, graph: Graph, name: str, i: int, start: int, stop: int) -> None:
        def mean(gradient, examples):
            piece = lax.slice(gradient.ravel(), (start,), (stop,))
            (total, seen), _ = exchange((piece, examples), AXIS, self.how)
            return total / seen

        size, inputs = stop - start, [f"{name} gradient", "examples"]
        run = self._together((name, i), mean, size + 1)
        made = Blob(f"{name} exchanged {i}", (1, size), "float32")
        graph.add(f"{name} exchange {i}", run, inputs, made, on="network", kind="exchange")

    def _add_update(self, graph: Graph, part: Any, count: int) -> None:
        name = part.name
        graph.add(
            f"{name} update",
            self._kept((name, "update"), jax.jit(part.step(self.task.optimizer))),
            [name, f"{name} optimizer", "lr", "momentum", *(f"{name} exchanged {i}" for i in range(count))],
            [Blob(f"{name} after", part.shape, "float32"), f"{name} optimizer after"],
            on="compute",
            kind="update",
        )

    def _turns(self, graph: Graph, cut: Mapping[str, Sequence]) -> list[tuple[str, int]]:
        """The order of the exchanges: by where a parameter stands in the network, among those that are there."""
        names = [p.name for p in self._parts]
        wanted = [(name, i) for name in names for i in range(len(cut[name]))]
        now = 0.0
        there: dict[str, float] = {}
        for op in graph.ops.values():
            now += self.costs.get(op.name, op.flops) if op.on.kind == "compute" else 0.0
            there |= {out.removesuffix(" gradient"): now for out in op.outputs}
        if not self.costs:
            # Where nothing is measured yet, as they come.
            return sorted(wanted, key=lambda one: there[one[0]])
        seconds = {one: self.costs[f"{one[0]} exchange {one[1]}"] for one in wanted}
        return turns({one: there[one[0]] for one in wanted}, seconds)

    # --- running ------------------------------------------------------------------------------------

    def _flow(self, feeds: Iterable[dict[str, Any]], depth: int) -> Iterator[dict[str, Any]]:
        self._line = self._scheduler.stream(
            self.graph, feeds, depth=depth, carry=self._carried, first=self._held
        )
        return self._line

    def _one_by_one(self, feeds: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for given in feeds:
            values = given | self._held
            for name in self.graph.order():
                self._into(values, self.graph.ops[name])
            yield values

    def _into(self, values: dict[str, Any], op: Op) -> None:
        assert op.run is not None
        made = jax.block_until_ready(op.run(*[values[name] for name in op.inputs]))
        values.update(zip(op.outputs, made if len(op.outputs) > 1 else (made,)))

    def _mini_batch(self, batch: MiniBatch) -> tuple[Any, ...]:
        def look(batch):
            augment_key, net_key = jax.random.split(batch.key)
            x = self.task.augmented(batch, augment_key)
            return x, (batch.labels, batch.weight), net_key, batch.weight.sum()

        return self._kept("mini-batch", jax.jit(look))(batch)

    def _loss(self, y: jax.Array, labels: Any) -> jax.Array:
        which, weight = labels
        return (self.task.loss(y.astype(jnp.float32), which) * weight).sum()

    def _kept(self, name: Any, program: Callable[..., Any]) -> Callable[..., Any]:
        """The program made first under that name, so that building the graph anew compiles nothing."""
        return self._programs.setdefault(name, program)

    def _together(self, name: Any, body: Callable[..., Any], values: int = 0) -> Callable[..., Any]:
        """A call of all processes: body of each worker's arrays; what it returns, as rows of one."""
        rows = self.team.rows

        def view(*args):
            made = body(*jax.tree.map(lambda x: x[0], args))
            return jax.tree.map(lambda x: x[None], varying(made))

        program = jax.jit(jax.shard_map(view, mesh=self.team.mesh, in_specs=P(AXIS), out_specs=P(AXIS)))
        row = jax.jit(lambda args: jax.tree.map(lambda x: x[None], args))
        whole = lambda x: jax.make_array_from_single_device_arrays((self.team.count, *x.shape[1:]), rows, [x])

        def run(*args):
            made = communicate(program, *jax.tree.map(whole, row(args)))
            return jax.tree.map(lambda x: x.addressable_shards[0].data, made)

        return self._kept(name, run)


def share(source: Source, plan: Plan, team: Workers) -> Iterator[Item]:
    """What this process's worker takes of an epoch, as `Layerwise.steps` wants it: every W-th mini-batch.

    A worker for which the last step has none is given one that counts for nothing.

    Args:
        source: training examples, as arrays of the host.
        plan: the epoch.
        team: the workers.
    """
    batches, me = len(plan.index), team.local[0]
    for first in range(0, batches, team.count):
        own = mini_batch(source, plan, min(first + me, batches - 1))
        if first + me >= batches:
            own = own._replace(weight=np.zeros_like(own.weight))
        yield own, plan.lr[first], plan.momentum[first]


def _check(task: Task, team: Workers, how: str, piece: int, emulated: Emulated | None) -> None:
    choose(how, ALGORITHMS, "exchange")
    if len(team.local) != 1:
        raise ValueError(
            f"layer by layer goes with one worker in each process, and this process has {len(team.local)}: "
            "start a process for each, as cnnkit launch and cnnkit lab do"
        )
    if task.dtype != jnp.float32:
        raise ValueError(f"layer by layer computes in float32, not {jnp.dtype(task.dtype).name}")
    if piece < 0:
        raise ValueError(f"piece is {piece}; it must be a number of floats, or 0 for whole parameters")
    if emulated is not None and not emulated.waits:
        raise ValueError("layer by layer, workers are made slower by waiting only: emulate(…, waits=True)")


def _extra(emulated: Emulated | None, worker: int) -> float:
    """Seconds that a worker waits in a step."""
    return 0.0 if emulated is None else (emulated.step_seconds or 0.0) * (1 / emulated.speeds[worker] - 1)


def _input(task: Task, shape: tuple[int, ...]) -> tuple[int, ...]:
    return task.augment.out_shape(shape) if task.augment else tuple(shape)


def _waiting(run: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args):
        made = jax.block_until_ready(run(*args))
        time.sleep(seconds)
        return made

    return slow


def _moved(old: jax.Array, change: jax.Array) -> jax.Array:
    """old + change; whole numbers stay whole."""
    exact = jnp.issubdtype(old.dtype, jnp.floating)
    return old + (change if exact else jnp.round(change)).astype(old.dtype)


def _nothing(*args: Any) -> None:
    """What an operation without a function does."""
