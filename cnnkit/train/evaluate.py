"""Exact evaluation: every example once, for any batch size, in one program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit import losses
from cnnkit.data import Dataset, Split
from cnnkit.layers import in_loop
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.task import Sums, Task
from cnnkit.train.views import Views

BATCH = 500


def usual_batch(shape: tuple[int, ...]) -> int:
    """How many images [*shape] an evaluation takes at a time: on a GPU as many as fill it."""
    if jax.default_backend() == "cpu":
        return BATCH
    return max(50, min(2000, 2**21 // (shape[0] * shape[1])))


def padded_batches(n: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """(index, weight) [batches, batch] that go through 0 … n − 1 in order, the padding at weight 0."""
    rows = -(-n // batch)
    place = np.arange(rows * batch).reshape(rows, batch)
    return np.minimum(place, n - 1).astype(np.int32), (place < n).astype(np.float32)


def sums_over(task: Task, params: Any, state: Any, images: Any, labels: Any, index: Any, weight: Any) -> Sums:
    """Loss, right answers and count over padded batches of images uint8 [N, H, W, C]."""

    if task.views is not None:
        logits = logits_over(task, params, state, images, index, weight)
        return jax.tree.map(lambda part: part.sum(), _judged(task, logits, labels[index], weight))

    def body(sums, at):
        index, weight = at
        logits, _ = task.logits(params, state, task.inputs(images[index]), None, train=False)
        now = jax.tree.map(lambda part: part.sum(), _judged(task, logits, labels[index], weight))
        return jax.tree.map(jnp.add, sums, now), None

    with in_loop():
        return lax.scan(body, Sums.zero(), (index, weight))[0]


def _judged(task: Task, logits: jax.Array, labels: jax.Array, weight: jax.Array) -> Sums:
    logits, labels, weight = logits.reshape(-1, logits.shape[-1]), labels.ravel(), weight.ravel()
    return Sums(task.loss(logits, labels) * weight, losses.correct(logits, labels, weight), weight)


def logits_over(task: Task, params: Any, state: Any, images: Any, index: Any, weight: Any) -> jax.Array:
    """Logits float32 [batches, batch, classes] of padded batches, over the task's views where it has some."""

    def logits(_, x):
        return None, task.logits(params, state, x, None, False)[0]

    with in_loop():
        once = lax.scan(lambda _, at: logits(_, task.inputs(images[at])), None, index)[1]
        return once if task.views is None else _again(task.views, once, logits, task, images, index, weight)


def _again(
    views: Views, once: jax.Array, logits: Any, task: Task, images: Any, index: Any, weight: Any
) -> Any:
    """The logits of once, and for the least certain examples their mean over all views."""
    batch, count = index.shape[1], views.unsure_of(len(images))
    if not count:
        return once
    flat = once.reshape(-1, once.shape[-1])
    chance = jax.nn.softmax(flat).max(-1)
    who = lax.top_k(jnp.where(weight.ravel() > 0, -chance, -jnp.inf), count)[1]
    batch = min(batch, count)
    rows = -(-count // batch)
    who = jnp.resize(who, (rows, batch))
    weights = jnp.asarray(views.weights)

    def body(_, at):
        x = task.inputs(images[index.ravel()[at]])
        others = lax.scan(logits, None, jnp.stack(list(views.of(x))[1:]))[1]
        return None, weights[0] * flat[at] + jnp.tensordot(weights[1:], others, 1)

    better = lax.scan(body, None, who)[1]
    return flat.at[who.ravel()].set(better.reshape(-1, flat.shape[-1])).reshape(once.shape)


class Judge:
    """Loss and accuracy of a model over one part of a data set, which stays on the device.

    Args:
        task: network, loss and input.
        split: the part.
        clocks: whose ``evaluate`` runs meanwhile.
        batch: examples at a time; any number gives the same counts. By default what suits the device.
    """

    def __init__(self, task: Task, split: Split, clocks: Clocks, batch: int | None = None) -> None:
        self.count = len(split.labels)
        batch = batch or usual_batch(split.images.shape[1:])
        index, weight = padded_batches(self.count, min(batch, self.count))
        self._arrays = jax.device_put((split.images, split.labels, index, weight))
        self._clocks = clocks
        self._sums = Compiled(functools.partial(sums_over, task), clocks)

    def prepare(self, params: Any, state: Any) -> None:
        """Compile for parameters and statistics like these, beside something else."""
        self._sums.prepare(params, state, *self._arrays)

    def __call__(self, params: Any, state: Any) -> dict[str, float]:
        """loss, accuracy, errors and examples.

        Raises:
            RuntimeError: other than every example was counted.
        """
        program = self._sums.program(params, state, *self._arrays)
        with self._clocks.measure("evaluate"):
            sums = jax.device_get(program(params, state, *self._arrays))
        if round(float(sums.examples)) != self.count:
            raise RuntimeError(
                f"the evaluation counted {sums.examples:.0f} of {self.count} examples; please report"
            )
        return {
            "loss": float(sums.loss) / self.count,
            "accuracy": float(sums.correct) / self.count,
            "errors": self.count - round(float(sums.correct)),
            "examples": self.count,
        }


class Judges(dict[str, Judge]):
    """A judge for each part of a data set, made when it is first asked for."""

    def __init__(self, task: Task, data: Dataset, clocks: Clocks) -> None:
        super().__init__()
        self._make = lambda part: Judge(task, data.split(part), clocks)

    def __missing__(self, part: str) -> Judge:
        return self.setdefault(part, self._make(part))


class Oracle:
    """Class probabilities of a model, for images that come from outside.

    Args:
        task: network and input.
        clocks: whose ``evaluate`` runs meanwhile.
    """

    def __init__(self, task: Task, clocks: Clocks) -> None:
        self._clocks = clocks
        self._logits = Compiled(functools.partial(logits_over, task), clocks)

    def __call__(self, params: Any, state: Any, images: np.ndarray, batch: int) -> np.ndarray:
        """Softmax of the logits, float32 [N, classes], of images uint8 [N, H, W, C], so many at a time."""
        given = (params, state, images, *padded_batches(len(images), min(batch, len(images))))
        program = self._logits.program(*given)
        with self._clocks.measure("evaluate"):
            logits = np.asarray(program(*given), np.float64)
        logits = logits.reshape(-1, logits.shape[-1])[: len(images)]
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        return (chances / chances.sum(-1, keepdims=True)).astype(np.float32)
