"""The engine for many workers: rounds of fetch_i local steps and an exchange, over the mesh of workers."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cnnkit.data import shares, starts
from cnnkit.layers import in_loop
from cnnkit.parallel.fetch import RoundView
from cnnkit.parallel.workers import Workers
from cnnkit.train import round as rounds
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.measure import Measured, wait_for_each
from cnnkit.train.round import AXIS, Carry, Common, Own, Rules
from cnnkit.train.step import Plan, Source
from cnnkit.train.task import Model, Sums, Task

MOST_ROUNDS = 256  # in one dispatch


class Team:
    """Training on every worker of a mesh; `advance` runs whole rounds.

    Args:
        task: what is trained.
        rules: how workers work together.
        workers: the mesh.
        fetch: policy that gives each worker its number of local steps.
        source: training examples, as arrays of the host.
        batch: examples in a mini-batch.
        clocks: where the time goes.
        fetch_scale: a factor on the policy's counts, asked before every round.
    """

    def __init__(
        self,
        task: Task,
        rules: Rules,
        workers: Workers,
        fetch: Callable[[RoundView], np.ndarray],
        source: Source,
        clocks: Clocks,
        fetch_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.task, self.rules, self.team, self.fetch, self.clocks = task, rules, workers, fetch, clocks
        self.fetch_scale = fetch_scale
        self.workers = workers.count
        self.round = 0
        self.measured = Measured(workers.count)
        self.carry: Carry | None = None
        self.source = self._everywhere(source)
        spread, same = P(AXIS), P()
        over = functools.partial(jax.shard_map, mesh=workers.mesh)
        inside = functools.partial
        programs = {
            "rounds": (self._rounds, (spread, same, same, same, same, same, spread), (0,)),
            "local": (self._local, (spread, same, same, same, same), ()),
            "swap": (self._swap, (spread, spread, spread), ()),
            "merge": (self._merge, (spread, spread, spread, same, same), (0, 1)),
            "settle": (self._settle, (spread, same, same), ()),
        }
        self._programs = {
            name: Compiled(over(inside(_one_view, body, specs), in_specs=specs, out_specs=spread), clocks, donate)
            for name, (body, specs, donate) in programs.items()
        }

    # --- programs: each a function of one worker's view ---------------------------------------------

    def _rounds(self, carry, source, plan, firsts, counts, number, signals):
        with in_loop():
            carry = rounds.rounds(self.task, self.rules, carry, source, plan, firsts, counts, number)
        return carry, (carry.own.sums, carry.own.bad), lax.all_gather(signals, AXIS)

    def _local(self, carry, source, plan, firsts, counts):
        me = lax.axis_index(AXIS)
        with in_loop():
            return rounds.local_phase(self.task, self.rules, carry, source, plan, firsts[me], counts[me])

    def _swap(self, change, own, signals):
        mean, total, own = rounds.swap(self.rules, change, own)
        return mean, total, own.error, lax.all_gather(signals, AXIS)

    def _merge(self, common, mean, total, lr, momentum):
        return rounds.merge(self.task, self.rules, common, mean, total, lr, momentum)

    def _settle(self, carry, lr, momentum):
        return rounds.settled(self.task, self.rules, carry, lr, momentum)

    # --- what Run asks -----------------------------------------------------------------------------

    def place(self, model: Model) -> None:
        """Begin with this model on every worker."""
        self.carry = self._stacked(jax.device_get(rounds.fresh(self.task, self.rules, model)))
        self._read_books()

    def begin_epoch(self, plan: Plan, fresh: bool, epoch: int, epochs: int) -> None:
        """Lay out an epoch; ``fresh`` unless it is resumed half-way."""
        self.host_plan, self.epoch, self.epochs = plan, epoch, epochs
        self.plan = self._everywhere(plan)
        if fresh:
            sums, bad = self._stacked(jax.device_get((Sums.zero(), np.int32(-1))))
            self.carry = self.carry._replace(own=self.carry.own._replace(sums=sums, bad=bad))

    def advance(self, position: int, seconds: float, stop: bool = False, save: bool = False) -> int:
        """Run rounds for about so long and wait for them.

        Args:
            position: mini-batches of the epoch that are done.
            seconds: how long.
            stop, save: wishes of this process; what all agreed on is in ``measured``.

        Returns:
            mini-batches of the epoch that are done now.
        """
        signals = self._rows(self.measured.tell(stop, save))
        alone = self.overlaps or self.measured.due(self.round)
        firsts, counts = self._lay_out(position, seconds, most=1 if alone else MOST_ROUNDS)
        begin = time.perf_counter()
        with self.clocks.measure("train"):
            took = (self._apart if alone else self._together)(firsts, counts, signals)
        self.measured.dispatch(counts, time.perf_counter() - begin, took)
        self.round += len(counts)
        return position + int(counts.sum())

    def _together(self, firsts: np.ndarray, counts: np.ndarray, signals: Any) -> None:
        """Many rounds in one program."""
        room = np.zeros((2, MOST_ROUNDS, self.workers), np.int32)
        room[:, : len(counts)] = firsts, counts
        laid_out = self._everywhere((room[0], room[1], np.int32(len(counts))))
        self.carry, books, told = self._collective(
            self._programs["rounds"], self.carry, self.source, self.plan, *laid_out, signals
        )
        self._sums, self._bad = self._gathered(books)
        self.measured.hear(self._first(told))

    def _apart(self, firsts: np.ndarray, counts: np.ndarray, signals: Any) -> dict[int, float]:
        """One round in three programs: the local phase, timed; the exchange; the merge."""
        carry, first, count = self.carry, *self._everywhere((firsts[0], counts[0]))
        swapping = None
        if self.rules.delay:
            swapping = self._exchanges.submit(self._timed_swap, carry.own.change, carry.own, signals)
            if not self.overlaps:
                swapping.result()
        begin = time.perf_counter()
        change, own = self._programs["local"](carry, self.source, self.plan, first, count)
        took = wait_for_each(own.examples, self.team.local, begin)
        if swapping is None:
            mean, total, error, exchanging = self._timed_swap(change, own, signals)
        else:
            mean, total, error, exchanging = swapping.result()
        self.measured.add(took, counts[0], exchanging)
        own = own._replace(error=error, change=change if self.rules.delay else ())
        lr, momentum = (rates[firsts[0, 0]] for rates in (self.host_plan.lr, self.host_plan.momentum))
        rates = self._everywhere((lr, momentum))
        common = self._programs["merge"](carry.common, mean, total, *rates)
        self.carry = jax.block_until_ready(Carry(common, own))
        self._read_books()
        return took

    def _timed_swap(self, change: Model, own: Own, signals: Any) -> tuple[Any, Any, Any, float]:
        program = self._programs["swap"]
        begin = time.perf_counter()
        mean, total, error, told = jax.block_until_ready(program(change, own, signals))
        self.measured.hear(self._first(told))
        return mean, total, error, time.perf_counter() - begin

    def _lay_out(self, position: int, seconds: float, most: int) -> tuple[np.ndarray, np.ndarray]:
        """(firsts, counts), int32 [rounds, workers], of the rounds that fit the time and the epoch."""
        firsts, counts, left = [], [], seconds
        while position < self.batches and len(counts) < most:
            fetch = self.fetch(self._view(position, len(counts)))
            scaled = np.maximum(1, np.round(fetch * self.fetch_scale())).astype(int)
            share = shares(scaled, self.batches - position)
            expected = self.measured.round_seconds(share)
            left -= seconds if expected is None else expected
            if counts and (left < 0 or self.measured.due(self.round + len(counts))):
                break
            firsts.append(starts(share, position))
            counts.append(share)
            position += int(share.sum())
        return np.stack(firsts).astype(np.int32), np.stack(counts).astype(np.int32)

    def _view(self, position: int, ahead: int) -> RoundView:
        plan = self.host_plan
        return RoundView(
            round=self.round + ahead,
            epoch=self.epoch + position / self.batches,
            lr=float(plan.lr[position]),
            workers=self.workers,
            speeds=self.measured.speeds,
            exchange_seconds=self.measured.exchange_seconds,
        )

    @property
    def batches(self) -> int:
        """Mini-batches in an epoch."""
        return len(self.host_plan.index)

    def sums(self) -> Sums:
        """Of the epoch so far, over all workers."""
        return Sums(*(float(np.sum(s, dtype=np.float64)) for s in self._sums))

    def bad(self) -> tuple[int, int] | None:
        """(mini-batch, worker) of a loss that was not finite in this epoch, the first worker's that has one."""
        found = [(int(b), w) for w, b in enumerate(self._bad) if b >= 0]
        return found[0] if found else None

    def model(self) -> Model:
        """The model all workers agree on, with nothing left on its way, on this process's first device."""
        return self._first(self._settled())._replace(opt=())

    def snapshot(self) -> Any:
        """Everything that a checkpoint must hold, on the host: what is common once, what is own by worker."""
        return {"common": self._first(self.carry.common), "own": self._gathered(self.carry.own)}
