"""W workers in plain NumPy, written from the definition of a round alone: what real rounds are held against.

A network is a vector of weights, a vector of statistics (batch-norm's, say; may be empty) and

    gradient(w, state, index, weight) -> (sum of the gradients of the examples, each by its weight; new state)

so anything with a gradient can be simulated: a constant, a quadratic, or a real network through raveling.
Everything is computed in the dtype of w; nothing here is fast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Gradient = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Batches = Callable[[int], tuple[np.ndarray, np.ndarray]]
BLOCK = 256


@dataclass
class Point:
    """One model: weights, statistics, the optimizer's momentum."""

    w: np.ndarray
    state: np.ndarray
    m: np.ndarray

    def flat(self) -> np.ndarray:
        return np.concatenate([self.w, self.state, self.m])

    def like(self, flat: np.ndarray) -> "Point":
        a, b = len(self.w), len(self.w) + len(self.state)
        return Point(flat[:a], flat[a:b], flat[b:])


@dataclass
class Round:
    """What there is after a round.

    Args:
        common: what all workers agree on.
        workers: what each will begin the next round with.
        shares, firsts: [W], mini-batches each took, and where its run began in the epoch.
        examples: [W], examples each saw in this round.
        settled: what all would agree on if the exchange still under way ended now.
    """

    epoch: int
    common: Point
    workers: list[Point]
    shares: list[int]
    firsts: list[int]
    examples: np.ndarray
    settled: Point


@dataclass
class Simulation:
    """Training by rounds.

    Args:
        gradient: of the network, as above.
        batches: epoch -> (index [B, b], weight [B, b]).
        workers: W.
        mode: ``local`` or ``accumulate``.
        fetch: round -> mini-batches for each worker.
        lr: a number, or (epoch, mini-batch) -> number.
        momentum: of the optimizer, m = momentum · m + g, w −= lr · m.
        delay: 0 or 1.
        inner: what becomes of a worker's momentum at an exchange: ``average``, ``keep``, ``reset``.
        outer: ``plain`` or ``nesterov``, with outer_lr and outer_momentum.
        payload: what rounding does to a worker's contribution Σ n_i · change: ``float32`` (nothing),
            ``bfloat16``, ``int8``; what it takes away is kept and added next time.
    """

    gradient: Gradient
    batches: Batches
    workers: int
    mode: str = "local"
    fetch: Callable[[int], Sequence[int]] = lambda r: [1]
    lr: Any = 0.1
    momentum: float = 0.0
    delay: int = 0
    inner: str = "keep"
    outer: str = "plain"
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    payload: str = "float32"
    rounds: list[Round] = field(default_factory=list)

    def run(self, w: np.ndarray, state: np.ndarray = (), epochs: int = 1) -> list[Round]:
        """All rounds of so many epochs."""
        w, state = np.asarray(w), np.asarray(state, np.asarray(w).dtype)
        self.common = Point(w, state, np.zeros_like(w))
        self.velocity = np.zeros_like(w)
        # Where each worker stands (y_i, as it last told the others) and what it told them.
        self.at = [self.common] * self.workers
        self.told = [(np.zeros_like(self.common.flat()), 0.0)] * self.workers
        self.residual = [np.zeros_like(self.common.flat()) for _ in range(self.workers)]
        for epoch in range(epochs):
            index, weight = self.batches(epoch)
            done = 0
            while done < len(index):
                shares = largest_remainder(self.fetch(len(self.rounds)), len(index) - done)
                firsts = [done + sum(shares[:i]) for i in range(self.workers)]
                self._round(epoch, index, weight, shares, firsts)
                done += sum(shares)
        return self.rounds

    def _round(self, epoch, index, weight, shares, firsts):
        ends, seen, says = [], [], []
        for start, share, first in zip(self.at, shares, firsts, strict=True):
            mine = range(first, first + share)
            work = self._accumulate if self.mode == "accumulate" else self._local
            end, change, n = work(epoch, start, [(j, index[j], weight[j]) for j in mine])
            ends.append(end)
            seen.append(n)
            says.append((change, n))
        lr = self._lr(epoch, firsts[0])
        agreed = self._exchange(self.told if self.delay else says, lr, keep=True)
        if self.delay:
            # z_i + (avg − y_i): where the worker is now, plus the average's difference from what it sent.
            at = [
                self._merged(end, agreed, start, change)
                for end, start, (change, _) in zip(ends, self.at, says, strict=True)
            ]
        else:
            at = [Point(agreed.w, agreed.state, self._momentum(end, agreed)) for end in ends]
        self.at, self.told, self.common = at, says, agreed
        settled = self._exchange(says, lr, keep=False) if self.delay else agreed
        self.rounds.append(Round(epoch, agreed, at, shares, firsts, np.array(seen), settled))

    def _local(self, epoch, start, mine):
        """Optimizer steps on the worker's own copy: (end, what it did, examples)."""
        w, state, m = start.w, start.state, start.m
        if self.inner == "reset":
            m = np.zeros_like(m)
        n = 0.0
        for j, index, weight in mine:
            total, state = self.gradient(w, state, index, weight)
            m = self.momentum * m + total / weight.sum()
            w = w - self._lr(epoch, j) * m
            n += weight.sum()
        end = Point(w, state, m)
        change = end.flat() - start.flat()
        # Momentum travels as it is, not as what became of it: it forgets, so that old differences mean nothing.
        change[len(w) + len(state) :] = m if self.inner == "average" else 0
        return end, change, n

    def _accumulate(self, epoch, start, mine):
        """Gradients at fixed weights: (end, their mean in place of a change of w, examples)."""
        state, total, n = start.state, np.zeros_like(start.w), 0.0
        for _, index, weight in mine:
            more, state = self.gradient(start.w, state, index, weight)
            total, n = total + more, n + weight.sum()
        mean = total / n if n else total
        change = np.concatenate([mean, state - start.state, np.zeros_like(start.m)])
        return Point(start.w, state, start.m), change, n

    def _exchange(self, says, lr, keep):
        """What all agree on once these have been exchanged; ``keep`` the residuals and the velocity."""
        n = sum(n for _, n in says)
        if not n:
            return self.common
        total = 0.0
        for i, (change, n_i) in enumerate(says):
            wanted = n_i * change
            if self.payload != "float32":
                wanted = wanted + (self.residual[i] if keep else 0)
            sent = rounded(wanted, self.payload)
            if keep:
                self.residual[i] = wanted - sent
            total = total + sent
        mean = self.common.like(total / n)
        state = self.common.state + mean.state
        if self.mode == "accumulate":
            m = self.momentum * self.common.m + mean.w
            return Point(self.common.w - lr * m, state, m)
        velocity = self.outer_momentum * self.velocity + mean.w
        if self.outer == "nesterov":
            w = self.common.w + self.outer_lr * (mean.w + self.outer_momentum * velocity)
        else:
            w = self.common.w + mean.w
        if keep:
            self.velocity = velocity
        return Point(w, state, mean.m)

    def _merged(self, end, agreed, start, change):
        own = Point(end.w + (agreed.w - start.w), end.state + (agreed.state - start.state), end.m)
        if self.mode == "accumulate":
            return Point(agreed.w, own.state, agreed.m)
        if self.inner == "average":
            own.m = agreed.m
        return own

    def _momentum(self, end, agreed):
        """A worker's momentum for the next round, where nothing is under way."""
        if self.mode == "accumulate" or self.inner == "average":
            return agreed.m
        return end.m if self.inner == "keep" else np.zeros_like(end.m)

    def _lr(self, epoch, j):
        return self.lr(epoch, j) if callable(self.lr) else self.lr


def largest_remainder(fetch: Sequence[int], left: int) -> list[int]:
    """Shares of a round: fetch if that much is left, else the rest in proportion."""
    total = sum(fetch)
    if total <= left:
        return [int(k) for k in fetch]
    shares = [int(k) * left // total for k in fetch]
    by_remainder = sorted(range(len(fetch)), key=lambda i: (-(int(fetch[i]) * left % total), i))
    for i in by_remainder[: left - sum(shares)]:
        shares[i] += 1
    return shares


def rounded(x: np.ndarray, payload: str) -> np.ndarray:
    """What arrives of x, in the dtype of x."""
    if payload == "float32":
        return x
    single = x.astype(np.float32)
    if payload == "bfloat16":
        bits = single.view(np.uint32)
        # To the nearest, halves to the even one.
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(x.dtype)
    blocks = np.pad(single, (0, -len(single) % BLOCK)).reshape(-1, BLOCK)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    steps = np.round(blocks / np.where(scale == 0, np.float32(1), scale))
    return (steps * scale).ravel()[: len(single)].astype(x.dtype)
