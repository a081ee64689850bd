"""Exact evaluation: every example once, for any batch size, in one program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit import losses
from cnnkit.data import Split
from cnnkit.layers import in_loop
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.task import Sums, Task

BATCH = 500


def padded_batches(n: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """(index, weight) [batches, batch] that go through 0 … n − 1 in order, the padding at weight 0."""
    rows = -(-n // batch)
    place = np.arange(rows * batch).reshape(rows, batch)
    return np.minimum(place, n - 1).astype(np.int32), (place < n).astype(np.float32)


def sums_over(task: Task, params: Any, state: Any, images: Any, labels: Any, index: Any, weight: Any) -> Sums:
    """Loss, right answers and count over padded batches of images uint8 [N, H, W, C]."""

    def body(sums, at):
        index, weight = at
        logits, _ = task.logits(params, state, task.inputs(images[index]), None, train=False)
        label = labels[index]
        now = Sums(
            (task.loss(logits, label) * weight).sum(),
            losses.correct(logits, label, weight).sum(),
            weight.sum(),
        )
        return jax.tree.map(jnp.add, sums, now), None

    with in_loop():
        return lax.scan(body, Sums.zero(), (index, weight))[0]


def logits_over(task: Task, params: Any, state: Any, images: Any, index: Any) -> jax.Array:
    """Logits float32 [batches, batch, classes] of padded batches."""
    body = lambda _, at: (None, task.logits(params, state, task.inputs(images[at]), None, False)[0])
    with in_loop():
        return lax.scan(body, None, index)[1]


class Judge:
    """Loss and accuracy of a model over one part of a data set, which stays on the device.

    Args:
        task: network, loss and input.
        split: the part.
        clocks: whose ``evaluate`` runs meanwhile.
        batch: examples at a time; any number gives the same counts.
    """

    def __init__(self, task: Task, split: Split, clocks: Clocks, batch: int = BATCH) -> None:
        self.count = len(split.labels)
        index, weight = padded_batches(self.count, min(batch, self.count))
        self._arrays = jax.device_put((split.images, split.labels, index, weight))
        self._clocks = clocks
        self._sums = Compiled(functools.partial(sums_over, task), clocks)

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
        index, _ = padded_batches(len(images), min(batch, len(images)))
        program = self._logits.program(params, state, images, index)
        with self._clocks.measure("evaluate"):
            logits = np.asarray(program(params, state, images, index), np.float64)
        logits = logits.reshape(-1, logits.shape[-1])[: len(images)]
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        return (chances / chances.sum(-1, keepdims=True)).astype(np.float32)
