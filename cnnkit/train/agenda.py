"""Which rounds come next: everyone's share of an epoch's mini-batches, as many rounds as fit the time."""

from collections.abc import Callable

import numpy as np

from cnnkit.data import shares, starts
from cnnkit.parallel.fetch import RoundView, every
from cnnkit.parallel.policy import ask
from cnnkit.train.measure import Measured
from cnnkit.train.step import Plan


class Agenda:
    """The rounds of an epoch.

    Args:
        plan: the epoch's mini-batches and rates.
        fetch: policy that gives each worker its number of local steps.
        measured: what is known of the workers' speeds, now and later.
        workers: how many.
        delay: rounds between a change and its arrival.
    """

    def __init__(
        self,
        plan: Plan,
        fetch: Callable[[RoundView], np.ndarray],
        measured: Measured,
        workers: int,
        delay: int,
    ) -> None:
        self.plan, self.fetch, self.measured = plan, fetch, measured
        self.workers, self.delay = workers, delay
        self.batches = len(plan.index)
        self._examples = np.cumsum(plan.weight.sum(1))  # up to each mini-batch, and it

    def rounds(
        self, number: int, position: int, seconds: float, most: int, scale: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """(firsts, counts), int32 [rounds, workers], of the rounds that fit the time and the epoch.

        Args:
            number: of the first of them, counted from the training's beginning.
            position: mini-batches of the epoch that are done.
            seconds: how long they may take; one is always among them.
            most: how many there may be.
            scale: factor on the policy's counts.
        """
        firsts: list[np.ndarray] = []
        counts: list[np.ndarray] = []
        left, fetch = seconds, None
        while position < self.batches and len(counts) < most:
            if fetch is None or not isinstance(self.fetch, every):  # which asks for the same every time
                fetch = ask(self.fetch, self.view(number + len(counts), position))
                scaled = np.maximum(1, np.round(fetch * scale)).astype(int)
            share = shares(scaled, self.batches - position)
            if not counts or (share != counts[-1]).any():
                expected = self.measured.round_seconds(share)
            left -= seconds if expected is None else expected
            if counts and (left < 0 or self.measured.due(number + len(counts))):
                break
            firsts.append(starts(share, position))
            counts.append(share)
            position += int(share.sum())
        return np.stack(firsts).astype(np.int32), np.stack(counts).astype(np.int32)

    def view(self, number: int, position: int) -> RoundView:
        """What a policy may know of the round of that number, which begins at that mini-batch."""
        plan = self.plan
        return RoundView(
            round=number,
            epochs=int(plan.epoch) + position / self.batches,
            examples=int(plan.epoch * self._examples[-1] + (self._examples[position - 1] if position else 0)),
            lr=float(plan.lr[position]),
            workers=self.workers,
            speeds=self.measured.speeds,
            exchange_seconds=self.measured.exchange_seconds,
            delay=self.delay,
        )
