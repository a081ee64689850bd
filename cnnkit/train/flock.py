"""Many models of one task, which differ in their seeds alone, trained by one program."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from cnnkit.data import Split, batches
from cnnkit.layers import in_loop
from cnnkit.parallel import workers as mesh
from cnnkit.train import settings
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.diverge import Diverged
from cnnkit.train.optim import Optimizer
from cnnkit.train.step import Plan, Progress, Source, local_steps
from cnnkit.train.task import Model, Task, epoch_key, init_key


class Trained(NamedTuple):
    """One model of a flock, and how it came to be.

    Args:
        seed: its own.
        model: parameters, statistics and optimizer state, on the host.
        rows: one for each epoch: epoch, examples, train_loss, train_accuracy, lr, momentum.
    """

    seed: int
    model: Model
    rows: list[dict[str, Any]]


class Flock:
    """Trains models of one task by one program, whatever their seeds, epochs and part of the examples.

    Each model sees what a run of its seed would see, in the same order with the same draws.

    Args:
        task: what is trained.
        examples: to learn from; they lie on every device.
        batch: examples of a step of one model.
        at_once: models that each device trains in one program, side by side.
        workers: devices, each with models of its own.
        clocks: where the time goes.
    """

    def __init__(
        self,
        task: Task,
        examples: Split,
        batch: int,
        *,
        at_once: int = 1,
        workers: int = 1,
        clocks: Clocks | None = None,
    ) -> None:
        self.task, self.batch, self.clocks = (
            task.all_alike("a flock"),
            settings.count("batch", batch),
            clocks or Clocks(),
        )
        self.at_once, self.examples = settings.count("at_once", at_once), examples
        self.team = mesh.make(workers)
        self.group = at_once * self.team.count
        self._source = jax.device_put(Source(*map(np.asarray, examples)), self.team.everywhere)
        self._rows = -(-len(examples.labels) // batch)
        body = functools.partial(_stretch, task, at_once)
        if self.team.count > 1:
            several, same = P(mesh.AXIS), P()
            specs = (several, same, several, same, same)
            body = jax.shard_map(body, mesh=self.team.mesh, in_specs=specs, out_specs=several)
        self._program = Compiled(body, self.clocks, donate=(0,))

    def compile(self) -> None:
        """Compile the program before it is needed, perhaps beside those of others."""
        self._program.program(*self._arguments([0] * self.group, 0, 1, None, self.task.optimizer.rates)[0])

    def train(
        self,
        seeds: Sequence[int],
        epochs: int,
        *,
        part: np.ndarray | None = None,
        optimizer: Optimizer | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> list[Trained]:
        """A model for each seed, trained to the last epoch, group by group.

        Args:
            seeds: of the models.
            epochs: how often the examples are gone through.
            part: numbers of the examples to learn from; all when left out.
            optimizer: whose rates are taken in place of the task's; of the same kind, so that nothing is compiled.
            say: is told of each group that is done.

        Raises:
            Diverged: a loss was not finite.
        """
        done: list[Trained] = []
        for begin in range(0, len(seeds), self.group):
            now = list(seeds[begin : begin + self.group])
            # A program has as many models as it has: the last group's empty places are filled and forgotten.
            full = now + [now[0]] * (self.group - len(now))
            rates = (optimizer or self.task.optimizer).rates
            done += self._train(full, settings.count("epochs", epochs), part, rates)[: len(now)]
            last = [trained.rows[-1] for trained in done[begin:]]
            accuracy = 100 * np.mean([row["train_accuracy"] for row in last])
            say(f"{len(done)} of {len(seeds)} trained, training accuracy {accuracy:.2f} %")
        return done

    def _train(self, seeds: list[int], epochs: int, part: np.ndarray | None, rates: Any) -> list[Trained]:
        progress, rows = None, [[] for _ in seeds]  # type: ignore[var-annotated]
        for epoch in range(epochs):
            arguments, plan = self._arguments(seeds, epoch, epochs, part, rates, progress)
            program = self._program.program(*arguments)
            with self.clocks.measure("train"):
                progress, books = program(*arguments)
                sums, bad = jax.device_get(books)
            if (bad >= 0).any():
                who = int(np.argmax(bad >= 0))
                raise Diverged(
                    f"the loss of seed {seeds[who]} is not a finite number since epoch {epoch + 1}, mini-batch "
                    f"{int(bad[who]) + 1}; take a lower learning rate"
                )
            for i, each in enumerate(rows):
                each.append(
                    {
                        "epoch": epoch + 1,
                        "examples": (epoch + 1) * round(float(sums.examples[i])),
                        "train_loss": float(sums.loss[i] / sums.examples[i]),
                        "train_accuracy": float(sums.correct[i] / sums.examples[i]),
                        "lr": float(plan.lr[-1]),
                        "momentum": float(plan.momentum[-1]),
                    }
                )
        models = jax.device_get(progress.model)  # type: ignore[union-attr]
        one = lambda i: jax.tree.map(lambda leaf: leaf[i], models)
        return [Trained(seed, one(i), each) for i, (seed, each) in enumerate(zip(seeds, rows, strict=True))]

    def _arguments(
        self,
        seeds: list[int],
        epoch: int,
        epochs: int,
        part: np.ndarray | None,
        rates: Any,
        progress: Any = None,
    ) -> tuple[tuple[Any, ...], Plan]:
        plans = [self._lay_out(seed, epoch, epochs, part, rates) for seed in seeds]
        keys = jnp.stack([plan.key for plan in plans])
        host = [plan._replace(key=()) for plan in plans]  # type: ignore[arg-type]  # put back below
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *host)._replace(key=keys)
        if progress is None:
            images = self.examples.images
            begun = [Progress.fresh(self.task.fresh(init_key(seed), images)) for seed in seeds]
            progress = jax.tree.map(lambda *leaves: jnp.stack(leaves), *begun)
            progress = jax.device_put(progress, self.team.rows)
        else:
            fresh = jax.tree.map(jnp.zeros_like, progress.sums)
            progress = progress._replace(sums=fresh)
        stacked = jax.device_put(stacked, self.team.rows)
        count = -(-(len(self.examples.labels) if part is None else len(part)) // self.batch)
        return (progress, self._source, stacked, jnp.int32(0), jnp.int32(count)), plans[0]

    def _lay_out(self, seed: int, epoch: int, epochs: int, part: np.ndarray | None, rates: Any) -> Plan:
        """An epoch of one model, with as many rows as the whole of the examples takes."""
        n = len(self.examples.labels) if part is None else len(part)
        index, weight = batches(n, self.batch, seed, epoch)
        lr, momentum = rates(epoch + np.arange(len(index)) / len(index), epochs)
        if part is not None:
            index = np.asarray(part, np.int32)[index]
        more = self._rows - len(index)
        index, weight = (np.pad(a, ((0, more), (0, 0))) for a in (index, weight))
        lr, momentum = (np.pad(a, (0, more), mode="edge") for a in (lr, momentum))
        return Plan(index, weight, lr, momentum, epoch_key(seed, epoch), np.int32(epoch))


def _stretch(task: Task, at_once: int, progress: Any, source: Any, plan: Any, first: Any, stop: Any) -> Any:
    """Steps of the models on one device; with one alone nothing is batched, and it compiles as a run does."""
    with in_loop():
        if at_once == 1:
            alone = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)
            progress = local_steps(task, alone(progress), source, alone(plan), first, stop)
            progress = jax.tree.map(lambda leaf: leaf[None], progress)
        else:
            steps = lambda progress, plan: local_steps(task, progress, source, plan, first, stop)
            progress = jax.vmap(steps)(progress, plan)
    return progress, (progress.sums, progress.bad)
