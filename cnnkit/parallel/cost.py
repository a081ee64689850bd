"""What a round costs: computing, bytes over links, what overlaps; a prediction to hold measurements against."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from cnnkit.parallel.fetch import Policy, RoundView, as_policy
from cnnkit.parallel.traffic import Traffic, sent_bytes

TCP = 1448 / 1514
"""Bytes of payload in a byte on the wire: a full TCP segment in its Ethernet frame."""


@dataclass(frozen=True)
class Link:
    """How a worker is joined to the others: full duplex, to a switch that carries everything at once.

    Args:
        rate: bits a second in each direction, e.g. 1e9.
        latency: seconds that one hop takes beside its bytes.
        efficiency: payload bytes in a byte on the wire; 1 for a rate that was fitted to measurements.
        shared: all workers share one medium, as two GPUs behind one loopback do.
    """

    rate: float
    latency: float = 0.0
    efficiency: float = TCP
    shared: bool = False

    def __post_init__(self):
        if not self.rate > 0 or not self.efficiency > 0 or not self.latency >= 0:
            raise ValueError(
                "a link needs rate > 0 (bits a second), efficiency > 0 and latency >= 0 (seconds), got "
                f"rate={self.rate}, efficiency={self.efficiency}, latency={self.latency}"
            )

    def seconds(self, traffic: Traffic) -> float:
        """How long an exchange takes.

            hops · latency + 8 · bytes / (rate · efficiency)

        where bytes are those that pass one after another, or all of them on a shared medium.

        >>> two_nodes = sent_bytes(6_250_000, workers=2)  # 25 MB of float32
        >>> round(Link(1e9).seconds(two_nodes), 3)
        0.209
        """
        carried = traffic.total if self.shared else traffic.serial
        return traffic.hops * self.latency + 8 * carried / (self.rate * self.efficiency)


def fit(exchanges: Sequence[Traffic], seconds: Sequence[float], shared: bool = False) -> Link:
    """The link that explains measured exchanges best.

        minimize Σ_j ((hops_j · latency + 8 · bytes_j / rate) / seconds_j − 1)²,   latency, rate ≥ 0

    Relative errors, so that short exchanges count as much as long ones. The rate is one of payload:
    the efficiency of the link that comes back is 1.

    Args:
        exchanges: what was sent; two at least, of different sizes, or else the latency is taken as 0.
        seconds: how long each took.
        shared: as in `Link`.

    Raises:
        ValueError: nothing to fit, or times that do not grow with the bytes.
    """
    measured = np.asarray(seconds, np.float64)
    if not len(exchanges) or len(exchanges) != len(measured) or not (measured > 0).all():
        raise ValueError(
            f"fit needs a time above 0 for each exchange, got {len(exchanges)} and {list(seconds)}"
        )
    hops = np.array([t.hops for t in exchanges]) / measured
    bits = np.array([8.0 * (t.total if shared else t.serial) for t in exchanges]) / measured
    both = np.stack([hops, bits], 1)
    latency, per_bit = 0.0, float(bits.sum() / (bits @ bits)) if bits.any() else 0.0
    if np.linalg.matrix_rank(both / np.maximum(both.max(0), 1e-300)) == 2:
        solved = np.linalg.lstsq(both, np.ones(len(measured)), rcond=None)[0]
        if solved[0] >= 0:
            latency, per_bit = float(solved[0]), float(solved[1])
    if per_bit <= 0:
        raise ValueError("fit needs exchanges that take longer the more they send; measure larger ones")
    return Link(1 / per_bit, latency, efficiency=1.0, shared=shared)


@dataclass(frozen=True)
class RoundCost:
    """What one round takes.

        C_i = k_i t_i,   C = max_i (C_i + z_W · jitter · t_i · √k_i)
        delay 0:  T = C + x + overhead
        delay 1:  T = max(C, hidden · x) + (1 − hidden) · x + overhead

    Step times that vary by themselves make a round wait for the unluckiest worker: the sum of k steps
    deviates by jitter · t · √k, and z_W is the expected largest of W standard normal numbers (Blom's
    approximation), 0.59 for 2 workers and 3.2 for 1,000.

    Args:
        step_seconds: t_i of each worker, or one for all.
        fetch: k_i of each worker.
        exchange_seconds: x, when nothing hides it.
        delay: 1 if the exchange runs while the next round computes.
        hidden: the part of an exchange that can run beside computing: 1 where overlap is complete.
        overhead: seconds of each round that are neither, such as its dispatch.
        jitter: standard deviation of a step's time over its mean.
    """

    step_seconds: float | Sequence[float]
    fetch: Sequence[int]
    exchange_seconds: float = 0.0
    delay: int = 0
    hidden: float = 1.0
    overhead: float = 0.0
    jitter: float = 0.0

    @property
    def computing(self) -> np.ndarray:
        """C_i, seconds that each worker computes, [W]."""
        return np.asarray(self.fetch, np.float64) * self.step_seconds

    @property
    def seconds(self) -> float:
        """T, from one round's start to the next."""
        k = np.asarray(self.fetch, np.float64)
        unlucky = _largest_of(len(k)) * self.jitter * np.sqrt(k) * self.step_seconds
        slowest = float((self.computing + unlucky).max())
        if not self.delay:
            return slowest + self.exchange_seconds + self.overhead
        beside = self.hidden * self.exchange_seconds
        return max(slowest, beside) + self.exchange_seconds - beside + self.overhead

    @property
    def busy(self) -> np.ndarray:
        """The fraction of the round in which each worker computes, C_i / T, [W]."""
        return self.computing / self.seconds

    def throughput(self, batch: int = 1) -> float:
        """Examples a second, Σ k_i · batch / T; local steps a second with a batch of 1."""
        return float(np.sum(self.fetch)) * batch / self.seconds

    @property
    def of_ideal(self) -> float:
        """Throughput over that of the same workers without a link and without waiting."""
        speeds = 1 / np.broadcast_to(self.step_seconds, len(self.fetch))
        return self.throughput() / float(speeds.sum())


@dataclass(frozen=True)
class Point:
    """A point of a scaling curve: workers, k, examples a second, of which ideal, seconds of an exchange."""

    workers: int
    fetch: int
    examples_per_s: float
    of_ideal: float
    exchange_seconds: float


def curve(
    step_seconds: float,
    n_values: int,
    link: Link,
    workers: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000),
    *,
    batch: int = 1,
    fetch: Policy | int | str = 1,
    how: str = "psum",
    payload: str = "float32",
    delay: int = 0,
    overhead: float = 0.0,
    jitter: float = 0.0,
) -> list[Point]:
    """Predicted throughput against the number of equal workers.

    Args:
        step_seconds: of a local step.
        n_values: floats exchanged, the network's parameters.
        link: from each worker to the switch.
        workers: the numbers of workers to predict.
        batch: examples in a local step.
        fetch: a policy; asked once for each number of workers, with these times as measured.
        how, payload, delay, overhead, jitter: of the exchange and the round.

    >>> slow = curve(0.05, 6_250_000, Link(1e9), [1, 4], fetch="every(1)")
    >>> [round(point.of_ideal, 2) for point in slow]
    [1.0, 0.14]
    >>> hidden = curve(0.05, 6_250_000, Link(1e9), [1000], fetch="hide(1.0)", delay=1)
    >>> hidden[0].fetch, round(hidden[0].of_ideal, 2)
    (9, 1.0)
    """
    policy = as_policy(fetch)
    points = []
    for w in workers:
        exchange = link.seconds(sent_bytes(n_values, w, how, payload))
        speeds = (1 / step_seconds,) * w
        k = policy(RoundView(workers=w, speeds=speeds, exchange_seconds=exchange, delay=delay))
        cost = RoundCost(step_seconds, k.tolist(), exchange, delay, overhead=overhead, jitter=jitter)
        points.append(Point(w, int(k.max()), cost.throughput(batch), cost.of_ideal, exchange))
    return points


def _largest_of(workers: int) -> float:
    """The expected largest of so many standard normal numbers, by Blom's approximation."""
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25)) if workers > 1 else 0.0
