"""Many training steps in one program: the loop that a worker runs between two looks from outside."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.train.task import MiniBatch, Model, Sums, Task, step_key


class Source(NamedTuple):
    """Training examples on the device: images uint8 [N, H, W, C], labels int32 [N]."""

    images: Any
    labels: Any


class Plan(NamedTuple):
    """An epoch, laid out before it begins.

    Args:
        index: int32 [batches, batch], which example stands where.
        weight: float32 of the same shape, 0 for padding.
        lr, momentum: float32 [batches].
        key: of the epoch.
        epoch: int32, its number from 0.
    """

    index: Any
    weight: Any
    lr: Any
    momentum: Any
    key: jax.Array
    epoch: Any


class Progress(NamedTuple):
    """What a worker carries through its steps.

    Args:
        model: parameters, statistics and optimizer state.
        sums: over the epoch so far.
        bad: the first mini-batch of the epoch whose loss was not finite, −1 while there is none.
    """

    model: Model
    sums: Sums
    bad: Any

    @staticmethod
    def fresh(model: Model) -> "Progress":
        return Progress(model, Sums.zero(), jnp.int32(-1))


def mini_batch(source: Source, plan: Plan, i: Any) -> MiniBatch:
    """The epoch's i-th mini-batch."""
    index = plan.index[i]
    images, labels = source.images[index], source.labels[index]
    return MiniBatch(images, labels, plan.weight[i], step_key(plan.key, i), index, plan.epoch)


def gradient_step(task: Task, progress: Progress, source: Source, plan: Plan, i: jax.Array) -> tuple:
    """Gradient of the i-th mini-batch's summed loss at the model as it is, with the books kept.

    From the first loss on that is not finite, gradients are 0 and statistics stay as they are.

    Returns:
        (gradient, examples in it, progress with new statistics and sums and the same parameters).
    """
    grads, state, sums = task.gradient(progress.model, mini_batch(source, plan, i))
    bad = jnp.where((progress.bad < 0) & ~jnp.isfinite(sums.loss), jnp.int32(i), progress.bad)
    grads = jax.tree.map(lambda g: jnp.where(bad < 0, g, 0), grads)
    state = jax.tree.map(lambda new, old: jnp.where(bad < 0, new, old), state, progress.model.state)
    model = progress.model._replace(state=state)
    return grads, sums.examples, Progress(model, jax.tree.map(jnp.add, progress.sums, sums), bad)


def local_step(task: Task, progress: Progress, source: Source, plan: Plan, i: jax.Array) -> Progress:
    """One optimizer step on the i-th mini-batch of the epoch.

    From the first loss on that is not finite, the parameters stay as they were before: so they can be looked
    at, and nothing spreads from one worker to the others. By a rate of 0, as to keep the old parameters would
    take a copy of them in every step.
    """
    grads, examples, progress = gradient_step(task, progress, source, plan, i)
    lr = jnp.where(progress.bad < 0, plan.lr[i], 0)
    return progress._replace(model=task.descend(progress.model, grads, examples, lr, plan.momentum[i]))


def local_steps(
    task: Task, progress: Progress, source: Source, plan: Plan, first: Any, stop: Any
) -> Progress:
    """Steps on mini-batches first … stop − 1; both may be traced, so that no count recompiles."""
    return lax.fori_loop(first, stop, lambda i, p: local_step(task, p, source, plan, i), progress)
