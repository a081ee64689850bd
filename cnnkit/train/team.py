"""The engine for many workers: rounds of fetch_i local steps and an exchange, over the mesh of workers."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cnnkit.graph import Graph, Timeline
from cnnkit.parallel.fetch import RoundView, every
from cnnkit.parallel.stamp import seconds as seconds_between
from cnnkit.parallel.traffic import sent_bytes
from cnnkit.parallel.workers import Workers
from cnnkit.train import round as rounds
from cnnkit.train.agenda import Agenda
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.control import Control, Scales
from cnnkit.train.learned import waits
from cnnkit.train.measure import Measured
from cnnkit.train.place import Place
from cnnkit.train.programs import programs
from cnnkit.train.round import Carry
from cnnkit.train.rules import Rules
from cnnkit.train.scheduled import Scheduled, communicate
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
        clocks: where the time goes.
        control: what people wish; of several processes each tells the others with the next exchange.
    """

    whole, begun = False, None  # no epoch is sent on its way behind another

    def __init__(
        self,
        task: Task,
        rules: Rules,
        workers: Workers,
        fetch: Callable[[RoundView], np.ndarray],
        source: Source,
        clocks: Clocks,
        control: Control,
    ) -> None:
        self.task, self.rules, self.team, self.fetch = task, rules, workers, fetch
        self.clocks, self.control = clocks, control
        self.workers = workers.count
        self.round = 0
        self.last: dict[str, Any] = {}
        self.measured = Measured(workers.count, workers.local)
        self.carry: Any = None
        # The next epoch's layout, here and on the workers, and empty books.
        self._ready: tuple[Plan, Any, Any] | None = None
        self.meanwhile: Callable[[], Any] | None = None
        self._beside = 0.0  # seconds that it took beyond an epoch's last rounds
        self._settled: Model | None = None
        self._rates = (0.0, 0.0)  # of the last round: those by which a gradient still on its way is applied
        # Within one program nothing overlaps on CPU; with a process a worker, two threads do.
        self.overlaps = (
            bool(rules.delay) and workers.platform == "cpu" and workers.processes == workers.count > 1
        )
        self._place = Place(workers)
        self.timeline = Timeline([])
        self._scheduled, self._delayed = Scheduled(), self._delayed_round()
        self.source = self._place.everywhere(source)
        self._bytes: list[int] = []
        self._by_task: dict[Task, dict[str, Compiled]] = {}
        self._now = task.at(0)  # as it was in the last round

    @property
    def stop(self) -> bool:
        """Whether any process wishes to end."""
        return self.control.stopping if self.team.processes == 1 else self.measured.stop

    @stop.setter
    def stop(self, wish: bool) -> None:
        self.measured.stop = wish

    @property
    def save(self) -> bool:
        """Whether any process wishes a checkpoint."""
        return self.measured.save

    @property
    def scales(self) -> Scales:
        """Factors on the learning rate and on fetch, the same in all processes."""
        return self.control.scales if self.team.processes == 1 else self.measured.scales

    @property
    def fetch_scale(self) -> float:
        """The factor on the policy's counts."""
        return self.scales.fetch

    # --- what Run asks -----------------------------------------------------------------------------

    def place(self, model: Model) -> None:
        """Begin with this model on every worker."""
        self.carry = self._place.stacked(jax.device_get(rounds.fresh(self.task, self.rules, model)))
        self._clear_books()
        self._bytes, self._settled = self._sent(model), None

    def _sent(self, model: Model) -> list[int]:
        """Bytes out of each worker in one exchange."""
        carried = rounds.changed(self.rules, model)
        values = sum(leaf.size for leaf in jax.tree.leaves(carried))
        return list(sent_bytes(values, self.workers, self.rules.exchange, self.rules.payload).sent)

    def ahead(self, plan: Plan) -> Plan:
        """The next epoch's layout, which is on the workers before it is needed."""
        self._ready = plan, self._place.everywhere(plan), self._empty_books()
        return plan

    def begin_epoch(self, plan: Plan, fresh: bool) -> None:
        """Lay out an epoch; ``fresh`` unless it is resumed half-way."""
        ready, self._ready = self._ready, None
        if ready is None or ready[0] is not plan:
            ready = plan, self._place.everywhere(plan), None
        _, self.plan, books = ready
        self.agenda = Agenda(plan, self.fetch, self.measured, self.workers, self.rules.delay)
        if fresh:
            sums, bad = books or self._empty_books()
            self.carry = self.carry._replace(own=self.carry.own._replace(sums=sums, bad=bad))
            self._clear_books()

    def _empty_books(self) -> Any:
        return self._place.stacked((Sums(*np.zeros(3, np.float32)), np.int32(-1)))

    def advance(self, position: int, seconds: float, save: bool = False) -> int:
        """Run rounds for about so long and wait for them.

        Args:
            position: mini-batches of the epoch that are done.
            seconds: how long.
            save: this process's wish for a checkpoint; ``self.save`` is what all agreed on.

        Returns:
            mini-batches of the epoch that are done now.
        """
        self._enter(self.task.at(int(self.agenda.plan.epoch)))
        self._settled = None
        signals = self._place.own_rows(self.measured.tell(self.control.stopping, save, self.control.scales))
        run = self._way()
        most = MOST_ROUNDS if run == self._together else 1
        firsts, counts = self.agenda.rounds(self.round, position, seconds, most, self.fetch_scale)
        before, self._beside = self.clocks.seconds["train"], 0.0
        with self.clocks.measure("train"):
            took = run(firsts, counts, signals)
        spent = self.clocks.seconds["train"] - before - self._beside
        self.measured.dispatch(counts, spent, self.rules.delay, took)
        self.last = self.measured.last | {"bytes": [b * len(counts) for b in self._bytes]}
        self.round += len(counts)
        lr, momentum = self._rates_at(firsts[-1, 0])
        self._rates = float(lr), float(momentum)
        return position + int(counts.sum())

    def _enter(self, now: Task) -> None:
        """Train what the epoch's task is from here on; what is on its way to layers that learn no more arrives first."""
        if self.rules.delay and now.frozen > self._now.frozen:
            common, own = self.carry
            arguments = self._place.everywhere((*map(np.float32, self._rates), np.int32(now.frozen)))
            params, change = self._alone(self._programs["arrived"], self.carry, *arguments)
            model = common.model._replace(params=params)
            self.carry = Carry(common._replace(model=model), own._replace(change=change))
        self._now = now

    def _way(self) -> Callable[..., Any]:
        """How the next round runs: with others in one program, in one that looks at the clock, or by the scheduler."""
        if self.overlaps:
            return self._apart
        return self._timed_alone if self.measured.due(self.round) else self._together

    def _together(self, firsts: np.ndarray, counts: np.ndarray, signals: Any) -> None:
        """Many rounds in one program, and what else is to be done until they are over."""
        room = np.zeros((2, MOST_ROUNDS, self.workers), np.int32)
        room[:, : len(counts)] = firsts, counts
        laid_out = self._place.everywhere((room[0], room[1], np.int32(len(counts))))
        arguments = (self.carry, self.source, self.plan, *laid_out, signals)
        # Another program only for a policy that never asks for more, so that no policy compiles twice.
        single = self.rules.mode == "accumulate" and self.fetch == every(1) and counts.max() <= 1
        program = self._programs["single" if single else "rounds"].program(*arguments)
        last = firsts[0, 0] + counts.sum() == self.agenda.batches
        begin, meanwhile = time.perf_counter(), self.meanwhile if last else None
        self.carry, told = self._scheduled.call(program, *arguments, meanwhile=meanwhile)
        if meanwhile is not None:  # it may have taken longer than the rounds
            self._beside = max(time.perf_counter() - begin - self._scheduled.seconds, 0.0)
        self._hear(told)

    def _timed_alone(self, firsts: np.ndarray, counts: np.ndarray, signals: Any) -> dict[int, float]:
        """One round in one program that looks at the clock."""
        exchanging = None
        if self.rules.delay and self.measured.exchange_due(self.round):
            # Hidden beside the computing its time cannot be seen; so once more by itself, for nothing.
            own = self.carry.own
            swap = self._programs["swap"].program(own.change, own, signals)
            *_, stamps = self._alone(swap, own.change, own, signals)
            exchanging = min(self._between(*stamps).values())
        arguments = (
            self.carry,
            self.source,
            self.plan,
            *self._place.everywhere((firsts[0], counts[0])),
            signals,
        )
        program = self._programs["timed"].program(*arguments)
        self.carry, (looked, begin, computed, exchanged), told = self._alone(program, *arguments)
        self._hear(told)
        # What it costs to look at the clock, on a GPU as much as a small step.
        look = self._between(looked, begin)
        if not self.rules.delay:
            waited = self._between(computed, exchanged)
            exchanging = min(max(waited[w] - look[w], 1e-6) for w in waited)
        took = {w: max(s - look[w], 1e-6) for w, s in self._between(begin, computed).items()}
        self.measured.add(took, counts[0], exchanging)
        return took

    def _apart(self, firsts: np.ndarray, counts: np.ndarray, signals: Any) -> dict[int, float]:
        """One round with delay in three programs: the exchange beside the local phase, the merge after both."""
        common, own = self.carry
        work = (self.carry, self.source, self.plan, *self._place.everywhere((firsts[0], counts[0])))
        # Compiled here, one after the other, as clocks must not run together.
        swap = self._programs["swap"].program(own.change, own, signals)
        local = self._programs["local"].program(*work)
        rates = self._place.everywhere(self._rates_at(firsts[0, 0]))
        feeds = {"common": common, "own": own, "signals": signals, "work": work, "rates": rates}
        feeds |= {"local": local, "swap": swap}
        begin = time.perf_counter()
        made, self.timeline = self._scheduled.run(self._delayed, feeds)
        whole = time.perf_counter() - begin
        self._hear(made["told"])
        took, exchanging = (self._between(*made[stamps]) for stamps in ("computed", "exchanged"))
        # What a round costs beside its phase is to be hidden with the exchange.
        waited = waits(whole, max(took.values()))
        self.measured.add(took, counts[0], whole if waited else min(exchanging.values()))
        change, own = made["phase"]
        self.carry = Carry(made["merged"], own._replace(error=made["error"], change=change))
        return took

    def _delayed_round(self) -> Graph:
        """The graph of a round with delay: what is exchanged is the round before's, so nothing here waits for it."""
        graph = Graph("a round with delay", ["common", "own", "signals", "work", "rates", "local", "swap"])

        def phase(local, work):
            change, own, stamps = local(*work)
            return (change, own), stamps

        exchange = lambda swap, own, signals: communicate(swap, own.change, own, signals)
        merge = lambda common, mean, total, rates: self._programs["merge"](common, mean, total, *rates)
        graph.add("local phase", phase, ["local", "work"], ["phase", "computed"], on="compute")
        exchanged = ["mean", "total", "error", "told", "exchanged"]
        graph.add("exchange", exchange, ["swap", "own", "signals"], exchanged, on="network")
        graph.add("merge", merge, ["common", "mean", "total", "rates"], "merged", on="compute")
        graph.outputs = ["phase", "computed", "error", "told", "exchanged", "merged"]
        return graph

    def _between(self, begin: jax.Array, end: jax.Array) -> dict[int, float]:
        """Seconds between two stamps on each local worker."""
        then, now = self._place.mine(begin), self._place.mine(end)
        return {worker: float(seconds_between(then[worker], now[worker])) for worker in self.team.local}

    def _hear(self, told: Any) -> None:
        signals, self._sums, self._bad = self._place.first(told, host=True)
        self.measured.hear(signals)

    def sums(self) -> Sums:
        """Of the epoch so far, over all workers, as last heard; with delay that may be a round ago."""
        return Sums(*(float(np.sum(s, dtype=np.float64)) for s in self._sums))

    def books(self) -> Sums:
        """Of the epoch so far, over all workers, with the last round."""
        if self.overlaps:  # what was heard is older than the round in which it was told
            books = (self.carry.own.sums, self.carry.own.bad)
            self._sums, self._bad = self._place.first(self._alone(self._programs["gather"], books), host=True)
        return self.sums()

    def bad(self) -> tuple[int, int] | None:
        """(mini-batch, worker) of the first loss that was not finite in this epoch."""
        return min(((int(b), w) for w, b in enumerate(self._bad) if b >= 0), default=None)

    def model(self) -> Model:
        """The model all workers agree on, with nothing left on its way, on this process's first device."""
        if not self.rules.delay:
            return self._place.first(self.carry.common.model)
        if self._settled is None:
            rates = self._place.everywhere(tuple(map(np.float32, self._rates)))
            common = self._alone(self._programs["settle"], self.carry, *rates)
            self._settled = self._place.first(common.model)
        return self._settled

    @property
    def talks(self) -> bool:
        """Whether `model` needs all processes, as a change is still on its way."""
        return bool(self.rules.delay) and self.team.processes > 1 and self._settled is None

    def snapshot(self) -> Any:
        """Everything that a checkpoint must hold, on the host: what is common once, what is own by worker."""
        return Carry(self._place.first(self.carry.common, host=True), self._gathered(self.carry.own))

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says beside the arrays."""
        return {
            "round": self.round,
            "workers": self.workers,
            "scales": self.scales,
            "rates": self._rates,
            "measured": self.measured.facts(),
        }

    def restore(self, carry: Carry, facts: dict[str, Any]) -> None:
        """Go on from a snapshot of as many workers, which `regroup` makes, and what was said beside it."""
        self.round, self.measured.scales = facts["round"], Scales(*facts["scales"])
        self._rates = tuple(facts["rates"])
        self._now = self.task.before(facts["epoch"], facts["position"])
        self.measured.restore(facts["measured"])
        self.carry = Carry(self._place.stacked(carry.common), self._place.rows(carry.own))
        self._sums, self._bad = carry.own.sums, carry.own.bad
        self._bytes, self._settled = self._sent(carry.common.model), None

    def compilations(self) -> int:
        """How many programs were compiled for training."""
        return sum(made.compilations for each in self._by_task.values() for made in each.values())

    @property
    def _programs(self) -> dict[str, Compiled]:
        if self._now not in self._by_task:
            self._by_task[self._now] = programs(self._now, self.rules, self.team, self.clocks)
        return self._by_task[self._now]

    def close(self) -> None:
        """Let the threads go."""
        self._scheduled.close()

    def _gathered(self, tree: Any) -> Any:
        """All workers' rows, on the host of every process."""
        if self.team.processes == 1:
            return jax.device_get(tree)
        # Leaf by leaf, as a device need not have room for all workers' states at once.
        return jax.tree.map(
            lambda leaf: self._place.first(self._alone(self._programs["gather"], leaf), host=True), tree
        )

    def _clear_books(self) -> None:
        self._sums = Sums(*np.zeros((3, self.workers), np.float32))
        self._bad = np.full(self.workers, -1, np.int32)

    def _alone(self, function: Callable[..., Any], *args: Any) -> Any:
        """A call that communicates: all such calls of a process go through one thread, one at a time."""
        return self._scheduled.call(function, *args)

    def _rates_at(self, batch: int) -> tuple[np.float32, np.float32]:
        return self.agenda.plan.lr[batch], self.agenda.plan.momentum[batch]
