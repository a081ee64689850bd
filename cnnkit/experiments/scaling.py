"""The cost model held against a cluster: fitted to one and two nodes, it predicts more."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cnnkit.experiments.job import Found
from cnnkit.parallel.cost import TCP, Link, Point, RoundCost, curve, fit
from cnnkit.parallel.fetch import RoundView, as_policy
from cnnkit.parallel.traffic import sent_bytes

EXCHANGES = ("psum", "tree", "redundant", "server")
WORKERS = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)


@dataclass(frozen=True)
class Fitted:
    """What one policy's rounds take over one link.

    Args:
        step_seconds: of a local step, on a node alone.
        values: floats that are exchanged.
        link: fitted to the exchanges of two nodes.
        overhead: what a round of two nodes took beside its steps and its exchange.
        batch: examples in a step.
        policy: ``fetch`` and ``delay``.
    """

    step_seconds: float
    values: int
    link: Link
    overhead: float
    batch: int
    policy: Mapping[str, Any]

    def exchange(self, nodes: int, how: str = "psum") -> float:
        """Seconds of an exchange between so many."""
        return self.link.seconds(sent_bytes(self.values, nodes, how))

    def round(self, nodes: int) -> RoundCost:
        """A round of so many, with as many steps as the policy takes."""
        delay, exchange = self.policy.get("delay", 0), self.exchange(nodes)
        k = steps(self.policy, nodes, self.step_seconds, exchange)
        return RoundCost(self.step_seconds, k, exchange, delay, overhead=self.overhead)

    def images_per_s(self, nodes: int) -> float:
        """Examples a second of so many nodes; one is alone, without rounds."""
        return self.batch / self.step_seconds if nodes == 1 else self.round(nodes).throughput(self.batch)

    def curve(self, how: str = "psum") -> list[Point]:
        """Predictions up to a thousand nodes, by another exchange if so wished."""
        return curve(
            self.step_seconds,
            self.values,
            self.link,
            WORKERS,
            batch=self.batch,
            fetch=self.policy["fetch"],
            how=how,
            delay=self.policy.get("delay", 0),
            overhead=self.overhead,
        )


def steps(policy: Mapping[str, Any], nodes: int, step_seconds: float, exchange_seconds: float) -> list[int]:
    """The local steps that a policy takes where these times are measured."""
    speeds, delay = (1 / step_seconds,) * nodes, policy.get("delay", 0)
    view = RoundView(workers=nodes, speeds=speeds, exchange_seconds=exchange_seconds, delay=delay)
    return as_policy(policy["fetch"])(view).tolist()


def fitted(
    alone: Found, two: Mapping[str, Found], policies: Mapping[str, Mapping[str, Any]], batch: int
) -> dict[str, Fitted]:
    """The model of each policy, from a node alone and from what two nodes found over one link.

    Every policy's exchange says something about the link; what a round takes beside its steps and its
    exchange is each policy's own.
    """
    step = batch / float(np.median(alone["images_per_s"]))
    values = exchanged(next(iter(two.values())), 2)
    traffic = sent_bytes(values, 2)
    link = fit([traffic] * len(two), [found["exchange_seconds"] for found in two.values()])
    models = {}
    for label, found in two.items():
        delay = policies[label].get("delay", 0)
        without = RoundCost(step, found["fetch"], link.seconds(traffic), delay).seconds
        took = sum(found["fetch"]) * batch / float(np.median(found["images_per_s"]))
        overhead = max(took - without, 0.0)
        models[label] = Fitted(step, values, link, overhead, batch, policies[label])
    return models


def exchanged(found: Found, nodes: int) -> int:
    """Floats in an exchange, from the bytes that a psum of them sends out of each node."""
    return round(found["bytes"] * nodes / (8 * (nodes - 1)))


def rate_for(
    part: float, nodes: int, step_seconds: float, values: int, overhead: float = 0.0, efficiency: float = TCP
) -> float:
    """The rate at which synchronous training on so many nodes is a given part of one node's throughput.

        n t / (t + x + overhead) = part

    Args:
        part: of a node's throughput, e.g. 0.47.
        nodes: n.
        step_seconds: t.
        values: floats exchanged.
        overhead: seconds of a round that are neither.
        efficiency: of the rate, what an exchange gets.

    Returns:
        bits a second.

    Raises:
        ValueError: no link is so slow, as the nodes would not reach it without one.

    >>> round(rate_for(0.5, 4, 0.01, 1_000_000, efficiency=1.0) / 1e6)
    686
    """
    exchange = nodes * step_seconds / part - step_seconds - overhead
    if exchange <= 0:
        raise ValueError(f"{nodes} nodes are no faster than {part} of one, whatever their link")
    return 8 * sent_bytes(values, nodes).serial / (efficiency * exchange)
