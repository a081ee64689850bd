"""A snapshot of some number of workers made into one of another number."""

from typing import Any

import jax
import numpy as np

from cnnkit.train import round as rounds
from cnnkit.train.round import Carry, Common
from cnnkit.train.rules import Rules
from cnnkit.train.task import Model, Sums, Task


def like(task: Task, rules: Rules, model: Model, workers: int) -> Carry:
    """Shapes and dtypes of a snapshot: what is common once, what is own as rows [workers, …]."""
    carry = jax.eval_shape(lambda: rounds.fresh(task, rules, model))
    row = lambda leaf: jax.ShapeDtypeStruct((workers, *leaf.shape), leaf.dtype)
    return Carry(carry.common, jax.tree.map(row, carry.own))


def regroup(task: Task, rules: Rules, carry: Carry, workers: int, lr: Any, momentum: Any) -> Carry:
    """The same training on another number of workers; the same number changes nothing.

    Changes still on their way are merged now, optimizer states of workers are averaged, and the epoch's
    books and what rounding took from payloads go to worker 0, so that nothing is lost or counted twice.

    Args:
        carry: numpy arrays, as in a checkpoint.
        workers: the new number.
        lr, momentum: of the step that a pending accumulated gradient takes.
    """
    own = carry.own
    if len(own.examples) == workers:
        return carry
    common = settle(task, rules, carry, lr, momentum)
    alike = lambda leaf: np.broadcast_to(_average(leaf), (workers, *leaf.shape[1:]))
    zero = lambda leaf: np.zeros((workers, *leaf.shape[1:]), leaf.dtype)
    to_first = lambda leaf: np.concatenate([leaf.sum(0, keepdims=True), zero(leaf)[1:]])
    own = own._replace(
        opt=jax.tree.map(alike, own.opt),
        change=jax.tree.map(zero, own.change),
        examples=zero(own.examples),
        error=jax.tree.map(to_first, own.error),
        sums=Sums(*map(to_first, own.sums)),
        bad=np.full(workers, own.bad.max(), own.bad.dtype),
    )
    return Carry(common, own)


def settle(task: Task, rules: Rules, carry: Carry, lr: Any, momentum: Any) -> Common:
    """What is common, with the changes that were still on their way merged in.

    Args:
        carry, lr, momentum: as in `regroup`.
    """
    if not rules.delay:
        return carry.common
    mean, total = _mean(carry.own.change, carry.own.examples)
    step = jax.jit(lambda c, m: rounds.merge(task, rules, c, m, np.float32(total), lr, momentum))
    return jax.device_get(step(carry.common, mean))


def _mean(change: Any, examples: np.ndarray) -> tuple[Any, float]:
    total = float(examples.sum())
    weight = examples / max(total, 1.0)
    return jax.tree.map(lambda c: np.tensordot(weight, c, 1).astype(c.dtype), change), total


def _average(rows: np.ndarray) -> np.ndarray:
    mean = rows.mean(0)
    return (np.round(mean) if rows.dtype.kind in "iu" else mean).astype(rows.dtype)
