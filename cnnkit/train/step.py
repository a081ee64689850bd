"""Many training steps in one program: the loop that a worker runs between two looks from outside."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.train.task import Model, Sums, Task, step_key


class Source(NamedTuple):
    """Training examples on the device: images uint8 [N, H, W, C], labels int32 [N]."""

    images: jax.Array
    labels: jax.Array


class Plan(NamedTuple):
    """An epoch, laid out before it begins.

    Args:
        index: int32 [batches, batch], which example stands where.
        weight: float32 of the same shape, 0 for padding.
        lr, momentum: float32 [batches].
        key: of the epoch.
    """

    index: jax.Array
    weight: jax.Array
    lr: jax.Array
    momentum: jax.Array
    key: jax.Array


class Progress(NamedTuple):
    """What a worker carries through its steps.

    Args:
        model: parameters, statistics and optimizer state.
        sums: over the epoch so far.
        bad: the first mini-batch of the epoch whose loss was not finite, −1 while there is none.
    """

    model: Model
    sums: Sums
    bad: jax.Array

    @staticmethod
    def fresh(model: Model) -> "Progress":
        return Progress(model, Sums.zero(), jnp.int32(-1))


def mini_batch(source: Source, plan: Plan, i: jax.Array) -> tuple[jax.Array, ...]:
    """(images, labels, weight, key) of the epoch's i-th mini-batch."""
    index = plan.index[i]
    return source.images[index], source.labels[index], plan.weight[i], step_key(plan.key, i)


def gradient_step(task: Task, progress: Progress, source: Source, plan: Plan, i: jax.Array) -> tuple:
    """Gradient of the i-th mini-batch's summed loss at the model as it is, with the books kept.

    Returns:
        (gradient, examples in it, progress with new statistics and sums and the same parameters).
    """
    grads, state, sums = task.gradient(progress.model, *mini_batch(source, plan, i))
    bad = jnp.where((progress.bad < 0) & ~jnp.isfinite(sums.loss), jnp.int32(i), progress.bad)
    model = progress.model._replace(state=state)
    return grads, sums.examples, Progress(model, jax.tree.map(jnp.add, progress.sums, sums), bad)


def local_step(task: Task, progress: Progress, source: Source, plan: Plan, i: jax.Array) -> Progress:
    """One optimizer step on the i-th mini-batch of the epoch."""
    grads, examples, progress = gradient_step(task, progress, source, plan, i)
    return progress._replace(
        model=task.descend(progress.model, grads, examples, plan.lr[i], plan.momentum[i])
    )


def local_steps(
    task: Task, progress: Progress, source: Source, plan: Plan, first: Any, stop: Any
) -> Progress:
    """Steps on mini-batches first … stop − 1; both may be traced, so that no count recompiles."""
    return lax.fori_loop(first, stop, lambda i, p: local_step(task, p, source, plan, i), progress)
