"""The engine for one worker: plain training, many steps to a dispatch."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.layers import in_loop
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.step import Plan, Progress, Source, local_steps
from cnnkit.train.task import Model, Sums, Task


class Solo:
    """Training on one device. `advance` runs any stretch of an epoch's mini-batches.

    Args:
        task: what is trained.
        source: training examples, on the device.
        clocks: where the time goes.
    """

    workers = 1

    def __init__(self, task: Task, source: Source, clocks: Clocks) -> None:
        self.task, self.source, self.clocks = task, source, clocks
        self.progress: Any = None
        self.plan: Any = None
        self.stop = self.save = False
        self._rate = 0.0
        self._steps = Compiled(self._program, clocks, donate=(0,))

    def _program(self, progress, source, plan, first, stop):
        with in_loop():
            progress = local_steps(self.task, progress, source, plan, first, stop)
        return progress, (progress.sums, progress.bad)

    def place(self, model: Model) -> None:
        """Begin with this model."""
        self.progress = jax.device_put(Progress.fresh(model))

    def begin_epoch(self, plan: Plan, fresh: bool, epoch: int, epochs: int) -> None:
        """Lay out an epoch; ``fresh`` unless it is resumed half-way."""
        self.plan = jax.device_put(plan)
        self._batches = len(plan.index)
        if fresh:
            self.progress = Progress.fresh(self.progress.model)

    def advance(self, position: int, seconds: float, stop: bool = False, save: bool = False) -> int:
        """Train for about so long and wait for the result.

        Args:
            position: mini-batches of the epoch that are done.
            seconds: how long.
            stop, save: wishes for afterwards, handed on.

        Returns:
            mini-batches of the epoch that are done now.
        """
        end = min(self._batches, position + max(1, int(self._rate * seconds)))
        arguments = (self.progress, self.source, self.plan, jnp.int32(position), jnp.int32(end))
        program = self._steps.program(*arguments)
        begin = time.perf_counter()
        with self.clocks.measure("train"):
            self.progress, books = program(*arguments)
            self._sums, self._bad = jax.device_get(books)
        measured = (end - position) / max(time.perf_counter() - begin, 1e-6)
        # Grow step by step: the first dispatches are the slowest and the least typical.
        self._rate = min(measured, 4 * max(self._rate, 1 / seconds))
        self.stop, self.save = stop, save
        return end

    def sums(self) -> Sums:
        """Of the epoch so far, on the host."""
        return jax.tree.map(float, self._sums)

    def bad(self) -> tuple[int, int] | None:
        """(mini-batch, worker) of the first loss that was not finite in this epoch."""
        return None if self._bad < 0 else (int(self._bad), 0)

    def model(self) -> Model:
        """The model as it stands."""
        return self.progress.model

    def snapshot(self) -> Any:
        """Everything that a checkpoint must hold."""
        return self.progress

    def like(self, model: Model) -> Any:
        """A tree of the shapes and dtypes that `snapshot` gives for such a model."""
        return jax.eval_shape(Progress.fresh, model)

    def restore(self, tree: Any, facts: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.progress = jax.device_put(jax.tree.map(np.asarray, tree))
        self._sums, self._bad = jax.device_get((self.progress.sums, self.progress.bad))

    def compilations(self) -> int:
        """How many programs were compiled for training."""
        return self._steps.compilations
