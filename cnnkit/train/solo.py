"""The engine for one worker: plain training, many steps to a dispatch."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.layers import in_loop
from cnnkit.train import round as rounds
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.control import Control, Scales
from cnnkit.train.round import Carry
from cnnkit.train.rules import Rules
from cnnkit.train.step import Plan, Progress, Source, local_steps
from cnnkit.train.task import Model, Sums, Task, epoch_key


class Solo:
    """Training on one device; `advance` runs a stretch of an epoch's mini-batches.

    Args:
        task: what is trained.
        rules: how workers would work together, so that a checkpoint can be gone on from by many.
        source: training examples, as arrays of the host.
        clocks: where the time goes.
        control: what people wish.
        whole: whether an epoch is one dispatch, of a program whose number of steps is known.
    """

    workers = 1
    talks = False

    def __init__(
        self,
        task: Task,
        rules: Rules,
        source: Source,
        clocks: Clocks,
        control: Control,
        whole: bool = False,
    ) -> None:
        self.task, self.rules, self.clocks, self.control = task, rules, clocks, control
        self.source = jax.device_put(source)
        self.stop = self.save = False
        self.round = 0
        self.last: dict[str, Any] = {}
        self._progress: Any = None
        self._plan: Any = None
        self._rate = 0.0
        self._programs: dict[Task, tuple[Compiled, Compiled]] = {}
        self._now = task
        self.whole = whole
        self._sent: tuple[Plan, Any] | None = None  # an epoch on its way behind the last one, and its books
        self._returned = 0.0  # when `advance` last did
        self.meanwhile: Callable[[], None] | None = None
        self.on_its_way: Callable[[], None] | None = None  # is called once, when steps are
        self.later = False  # whether what later epochs take is compiled, or on its way

    def prepare(self, model: Model, mini_batches: int, batch: int, epoch: int = 0) -> None:
        """Compile what an epoch begins with, for a model of such arrays; meant for another thread."""
        like = functools.partial(jax.tree.map, self.like)
        rates = np.zeros(mini_batches, np.float32)
        index = np.broadcast_to(np.int32(0), (mini_batches, batch))
        key = jax.eval_shape(lambda: epoch_key(0, 0))
        plan = Plan(index, index.astype(np.float32), rates, rates, key, np.int32(0))
        stretch = () if self.whole else (np.int32(0), np.int32(0))
        given = (jax.eval_shape(Progress.fresh, model), self.source, plan, *stretch)
        self._program(self.task.at(epoch), *stretch).prepare(*like(given))

    def like(self, leaf: Any) -> jax.ShapeDtypeStruct:
        """What an array of that shape and dtype is like where this trains."""
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.source.labels.sharding)

    def place(self, model: Model) -> None:
        """Begin with this model, which may still be on its way."""
        self.round = 0
        self._carry(Progress.fresh(model))
        self._sums, self._bad = Sums(0.0, 0.0, 0.0), np.int32(-1)

    @property
    def scales(self) -> Scales:
        """Factors on the learning rate and on fetch."""
        return self.control.scales

    def ahead(self, plan: Plan) -> Plan:
        """The next epoch's layout, its order already on the device."""
        index, weight = jax.device_put((plan.index, plan.weight))
        return plan._replace(index=index, weight=weight)

    @property
    def begun(self) -> Plan | None:
        """The layout of the epoch that `begin` has sent on its way."""
        return self._sent and self._sent[0]

    def begin(self, plan: Plan) -> None:
        """Send the next epoch on its way while this one trains: for when nobody looks at the model in between.

        It ends as it would have. If a loss of this epoch was not finite, it changes nothing.
        """
        self._sent = plan, self._send(self.task.at(int(plan.epoch)), jax.device_put(plan))

    def begin_epoch(self, plan: Plan, fresh: bool) -> None:
        """Lay out an epoch; ``fresh`` unless it is resumed half-way."""
        self._now = self.task.at(int(plan.epoch))
        self._plan = jax.device_put(plan)
        self._batches = len(plan.index)
        if fresh and self.whole:  # the program of a whole epoch begins with empty books by itself
            self._sums, self._bad = Sums(0.0, 0.0, 0.0), np.int32(-1)
        elif fresh:
            self._hold(Progress.fresh(self._progress.model))

    def advance(self, position: int, seconds: float, save: bool = False) -> int:
        """Train for about so long and wait for the result.

        Args:
            position: mini-batches of the epoch that are done.
            seconds: how long.
            save: the wish for a checkpoint afterwards, handed on.

        Returns:
            mini-batches of the epoch that are done now.
        """
        end = min(self._batches, position + max(1, int(self._rate * seconds)))
        if self.whole and position == 0:
            end = self._batches
        begin = time.perf_counter()
        with self.clocks.measure("train"):
            if self._sent is not None:
                (_, books), self._sent = self._sent, None
                self.clocks.seconds["train"] += begin - self._returned
            elif self.whole and position == 0:
                books = self._send(self._now, self._plan)
            else:
                books = self._send(self._now, self._plan, jnp.int32(position), jnp.int32(end))
            if self.on_its_way is not None:
                told, self.on_its_way = self.on_its_way, None
                told()
            if self.meanwhile is not None and end == self._batches:
                self.meanwhile()
            self._sums, self._bad = jax.device_get(books)
        self._returned = time.perf_counter()
        measured = (end - position) / max(self._returned - begin, 1e-6)
        # Grow step by step: the first dispatches are the slowest and the least typical.
        self._rate = min(measured, 4 * max(self._rate, 1 / seconds))
        self.stop, self.save = self.control.stopping and self._sent is None, save
        self.round += end - position
        return end

    def sums(self) -> Sums:
        """Of the epoch so far, on the host."""
        return jax.tree.map(float, self._sums)

    books = sums

    def bad(self) -> tuple[int, int] | None:
        """(mini-batch, worker) of the first loss that was not finite in this epoch."""
        return None if self._bad < 0 else (int(self._bad), 0)

    def model(self) -> Model:
        """The model as it stands, on the device."""
        return self._progress.model

    def snapshot(self) -> Carry:
        """Everything that a checkpoint must hold, on the host, as a team of one would have it."""
        model, sums, bad = jax.device_get(self._progress)
        carry = jax.device_get(rounds.fresh(self.task, self.rules, model))
        own = jax.tree.map(lambda leaf: np.asarray(leaf)[None], carry.own._replace(sums=sums, bad=bad))
        return Carry(carry.common, own)

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says beside the arrays."""
        rest = {"rates": (0.0, 0.0), "measured": {"step_seconds": []}}
        return {"round": self.round, "workers": 1, "scales": self.scales, **rest}

    def restore(self, carry: Carry, facts: dict[str, Any]) -> None:
        """Go on from a snapshot of one worker, and what was said beside it."""
        own = jax.tree.map(lambda leaf: leaf[0], carry.own)
        model = carry.common.model
        if not self.rules.shares_opt:
            model = model._replace(opt=own.opt)
        self.round = facts["round"]
        self._hold(Progress(model, own.sums, own.bad))

    def compilations(self) -> int:
        """How many programs were compiled for training."""
        return sum(made.compilations for both in self._programs.values() for made in both)

    def needs(self) -> int:
        """Bytes that the largest of its programs holds while it runs."""
        return max((made.needs() for both in self._programs.values() for made in both), default=0)

    def close(self) -> None:
        """Nothing is held but memory."""

    def _send(self, task: Task, plan: Plan, *stretch: Any) -> Any:
        """A stretch of an epoch, or all of it, on its way; its books."""
        arguments = (self._progress, self.source, plan, *stretch)
        self._progress, books = self._program(task, *stretch)(*arguments)
        return books

    def _program(self, task: Task, *stretch: Any) -> Compiled:
        if task not in self._programs:
            made = lambda body: Compiled(functools.partial(body, task), self.clocks, donate=(0,))
            self._programs.setdefault(
                task, (made(_some_steps), made(_whole_epoch))
            )  # whichever thread is first
        some, epoch = self._programs[task]
        return some if stretch else epoch

    def _hold(self, progress: Progress) -> None:
        self._carry(progress)
        self._sums, self._bad = jax.device_get((progress.sums, progress.bad))

    def _carry(self, progress: Progress) -> None:
        self._progress, self._sent = jax.device_put(progress), None


def _some_steps(task: Task, progress: Any, source: Any, plan: Any, first: Any, stop: Any) -> Any:
    with in_loop():
        progress = local_steps(task, progress, source, plan, first, stop)
    return progress, (progress.sums, progress.bad)


def _whole_epoch(task: Task, progress: Any, source: Any, plan: Any) -> Any:
    # With the count known a GPU need not ask the host after each step whether there is another.
    # A loss that was not finite in the epoch before, of which the host may not have heard, ends this one too.
    progress = progress._replace(sums=Sums.zero())
    return _some_steps(task, progress, source, plan, 0, len(plan.index))
