"""How fast each worker is and how long an exchange takes, measured as training goes, agreed by all."""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from cnnkit.train.control import Scales
from cnnkit.train.learned import Learned

COLUMNS = ("step_seconds", "exchange_seconds", "stop", "save", "lr_scale", "fetch_scale")
KEPT = 5  # measurements whose median counts, so that one bad one changes nothing
EARLY = (1, 2, 3, 4, 6, 8, 12, 16, 24)
EVERY, APART = 32, 4.0  # rounds and seconds that lie at least between two measurements later on


class Measured:
    """Seconds a local step takes on each worker, and seconds of an exchange.

    What this process measures is its own until `hear` brings everyone's, so that all processes decide alike.

    Args:
        workers: how many there are.
        local: which of them are in this process.
    """

    def __init__(self, workers: int, local: Sequence[int]) -> None:
        self.workers, self.local = workers, tuple(local)
        self._phases: dict[int, deque[tuple[float, int]]] = {w: deque(maxlen=KEPT) for w in self.local}
        self._alone: deque[float] = deque(maxlen=KEPT)  # exchanges timed by themselves
        self._learned, self._told = (
            Learned(),
            1.0,
        )  # what rounds tell, which counts more; the stretch that all know of
        self.step_seconds = np.full(workers, np.nan)
        self.exchange_seconds: float | None = None
        self.stop = self.save = False
        self.scales = Scales()
        self.last: dict[str, Any] = {}
        self._usual = APART  # seconds of a round of the last dispatch, as all reckon them

    def due(self, round: int) -> bool:
        """Whether this round is to be timed by itself; it follows from what all know, so that all do it together.

        A round by itself takes as long as some short ones together: later on two such rounds are `APART`.
        """
        every = EVERY
        while every * self._usual < APART:
            every *= 2
        return self.workers > 1 and (round in EARLY or round % every == every - 1)

    def exchange_due(self, round: int) -> bool:
        """Whether an exchange is to be timed by itself in this round that is due, with the same promise."""
        return self.exchange_seconds is None or round in EARLY[:3]

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run goes on as it would have."""
        return {"step_seconds": self.step_seconds.tolist(), "exchange_seconds": self.exchange_seconds}

    def restore(self, facts: dict[str, Any]) -> None:
        """Go on from what `facts` gave, if it was of as many workers."""
        if len(facts["step_seconds"]) != self.workers:
            return
        self.step_seconds = np.array(facts["step_seconds"], float)
        self.exchange_seconds = facts["exchange_seconds"]
        for worker, kept in self._phases.items():
            if np.isfinite(self.step_seconds[worker]):
                kept.append((float(self.step_seconds[worker]), 1))
        if self.exchange_seconds is not None:
            self._alone.append(self.exchange_seconds)

    def add(self, seconds: dict[int, float], steps: Sequence[int], exchange: float | None) -> None:
        """One measurement: seconds of each local worker's phase, its local steps, seconds of the exchange."""
        for worker, took in seconds.items():
            if steps[worker] > 0:
                self._phases[worker].append((took, int(steps[worker])))
        if exchange is not None:
            self._alone.append(exchange)

    def tell(self, stop: bool, save: bool, scales: Scales) -> np.ndarray:
        """What this process has to say, float32 [local workers, 6]; 0 where nothing is known."""
        exchange = self._learned.exchange or median(self._alone or [0.0])
        self._told = self._learned.stretch
        step = [self._told * _a_step(self._phases[w]) for w in self.local]
        return np.array([[s, exchange, stop, save, *scales] for s in step], np.float32)

    def hear(self, told: np.ndarray) -> None:
        """Take in what all workers said, float32 [workers, 6]; of the factors, worker 0's hold for all."""
        step, exchange = told[:, 0].astype(float), told[:, 1].astype(float)
        self.step_seconds = np.where(step > 0, step, np.nan)
        # Whoever comes to an exchange early waits for the others; the last to come sees what it takes.
        self.exchange_seconds = float(exchange[exchange > 0].min()) if (exchange > 0).any() else None
        self.stop, self.save = bool(told[:, 2].any()), bool(told[:, 3].any())
        self.scales = Scales(*told[0, 4:].tolist())

    @property
    def speeds(self) -> np.ndarray | None:
        """Mini-batches a second of each worker, None while one of them is unknown."""
        return None if np.isnan(self.step_seconds).any() else 1 / self.step_seconds

    def dispatch(
        self, counts: np.ndarray, seconds: float, delay: int, alone: dict[int, float] | None = None
    ) -> None:
        """Keep the books of a dispatch: int [rounds, workers] local steps that took so many seconds.

        Args:
            delay: 1 if exchanges ran beside the local phases.
            alone: seconds of each local worker's phase where they were timed by themselves; other dispatches
                tell what a round costs beside its local phase.
        """
        if alone is None:
            self._learn(counts, seconds, delay)
        if self.speeds is not None:
            phase = float((counts * self.step_seconds).max(1).mean())
            self._usual = max(phase, self.exchange_seconds or 0.0, 1e-6)
        busy = counts.sum(0) * self.step_seconds / max(seconds, 1e-9)
        for worker, took in (alone or {}).items():
            busy[worker] = took / max(seconds, 1e-9)
        self.last = {
            "rounds": len(counts),
            "fetch": counts[(len(counts) - 1) // 2].tolist(),
            "steps": counts.sum(0).tolist(),
            "seconds": seconds,
            "busy": [None if np.isnan(b) else float(min(b, 1.0)) for b in busy],
            "step_seconds": [None if np.isnan(s) else float(s) for s in self.step_seconds],
            "exchange_seconds": self.exchange_seconds,
        }

    def _learn(self, counts: np.ndarray, seconds: float, delay: int) -> None:
        """Learn what a round takes beyond its longest local phase.

        By itself an exchange can be shorter: beside a local phase both slow each other down, and whatever
        else a round costs no look at the clock inside the program can see.
        """
        if self.speeds is None:
            return
        phase = float((counts * self.step_seconds).max(1).mean()) / self._told
        self._learned.add(phase, seconds / len(counts), delay, self.exchange_seconds)

    def round_seconds(self, counts: np.ndarray) -> float | None:
        """What a round of these local steps should take, None while that is unknown."""
        if self.speeds is None:
            return None
        return float((counts * self.step_seconds).max()) + (self.exchange_seconds or 0.0)


def _a_step(phases: Sequence[tuple[float, int]]) -> float:
    """Seconds of a step from phases of (seconds, steps); 0 where there are none.

    What a phase costs beside its steps weighs on short ones: on a GPU a phase of one step can take three
    times a step. So only phases at least half as long as the longest count, and of these the median.
    """
    longest = max((steps for _, steps in phases), default=0)
    return median([took / steps for took, steps in phases if 2 * steps >= longest] or [0.0])
