"""Several workers on one device, by turns: the same numbers as on as many devices, at no gain in speed."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.data import Split, batches, shares, starts
from cnnkit.layers import in_loop
from cnnkit.parallel.fetch import RoundView, as_policy
from cnnkit.train import round as rounds
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.optim import Optimizer
from cnnkit.train.round import Carry
from cnnkit.train.rules import Rules
from cnnkit.train.step import Plan, Source
from cnnkit.train.task import Model, Sums, Task, epoch_key, init_key


class Turns:
    """Trains one model by workers in mode ``local`` that take their turns on one device.

    Args:
        task: what is trained.
        examples: to learn from.
        batch: examples of one local step of one worker.
        workers: how many.
        fetch: local steps between two exchanges: a policy, a number or its text.
        clocks: where the time goes.
    """

    def __init__(
        self,
        task: Task,
        examples: Split,
        batch: int,
        workers: int,
        fetch: Any,
        clocks: Clocks | None = None,
    ) -> None:
        self.task, self.batch, self.workers = task.all_alike("training by turns"), batch, workers
        self.policy, self.clocks = as_policy(fetch), clocks or Clocks()
        self.rules = Rules(mode="local")
        self.images, self.count = examples.images, len(examples.labels)
        self._source = jax.device_put(Source(*map(np.asarray, examples)))
        self._program = Compiled(functools.partial(_epoch, task, self.rules), self.clocks, donate=(0,))

    def train(
        self, seed: int, epochs: int, optimizer: Optimizer | None = None
    ) -> tuple[Model, list[dict[str, Any]]]:
        """The model after the last epoch, on the host, and a row for each epoch.

        Args:
            seed: of the model.
            epochs: how often the examples are gone through.
            optimizer: whose rates are taken in place of the task's; of the same kind, so that nothing is compiled.
        """
        rates = (optimizer or self.task.optimizer).rates
        model = self.task.fresh(init_key(seed), self.images)
        carry = rounds.fresh(self.task, self.rules, model)
        carry = carry._replace(own=jax.tree.map(lambda leaf: jnp.stack([leaf] * self.workers), carry.own))
        rows, exchanges = [], 0
        for epoch in range(epochs):
            plan, firsts, counts, number = self._lay_out(seed, epoch, epochs, exchanges, rates)
            arguments = (_cleared(carry), self._source, plan, firsts, counts, np.int32(number))
            program = self._program.program(*arguments)
            with self.clocks.measure("train"):
                carry = program(*arguments)
                sums = jax.device_get(carry.own.sums)
            exchanges += number
            seen = sums.examples.sum()
            row = {"epoch": epoch + 1, "exchanges": exchanges, "train_loss": float(sums.loss.sum() / seen)}
            rows.append(row | {"train_accuracy": float(sums.correct.sum() / seen)})
        return jax.device_get(carry.common.model), rows

    def _lay_out(
        self, seed: int, epoch: int, epochs: int, done: int, rates: Any
    ) -> tuple[Plan, np.ndarray, np.ndarray, int]:
        """An epoch's plan, and each of its rounds' first mini-batches and counts."""
        index, weight = batches(self.count, self.batch, seed, epoch)
        lr, momentum = rates(epoch + np.arange(len(index)) / len(index), epochs)
        firsts = np.zeros((len(index), self.workers), np.int32)
        counts = np.zeros_like(firsts)
        at, number = 0, 0
        while at < len(index):
            view = RoundView(
                workers=self.workers,
                round=done + number,
                lr=float(lr[at]),
                epochs=epoch + at / len(index),
            )
            counts[number] = shares(self.policy(view), len(index) - at)
            firsts[number] = starts(counts[number], at)
            at += int(counts[number].sum())
            number += 1
        plan = Plan(index, weight, lr, momentum, epoch_key(seed, epoch), np.int32(epoch))
        return jax.device_put(plan), firsts, counts, number


def _cleared(carry: Carry) -> Carry:
    zero = jax.tree.map(jnp.zeros_like, carry.own.sums)
    return carry._replace(own=carry.own._replace(sums=Sums(*zero)))


def _epoch(
    task: Task, rules: Rules, carry: Any, source: Any, plan: Any, firsts: Any, counts: Any, number: Any
) -> Any:
    """Rounds in which the workers' local phases follow one another, and their changes are averaged by examples."""

    def one(r, carry):
        common, own = carry

        def phase(at):
            mine, first, count = at
            return rounds.local_phase(task, rules, Carry(common, mine), source, plan, first, count)

        changes, own = lax.map(phase, (own, firsts[r], counts[r]))
        total = own.examples.sum()
        share = own.examples / jnp.maximum(total, 1)
        mean = jax.tree.map(lambda change: jnp.tensordot(share, change, 1), changes)
        lr, momentum = plan.lr[firsts[r, 0]], plan.momentum[firsts[r, 0]]
        return Carry(rounds.merge(task, rules, common, mean, total, lr, momentum), own)

    with in_loop():
        return lax.fori_loop(0, number, one, carry)
