"""The programs of many workers, each a function of one worker's view, compiled over the mesh."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from cnnkit.layers import in_loop
from cnnkit.parallel.stamp import after, stamp
from cnnkit.parallel.workers import Workers
from cnnkit.train import round as rounds
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.round import AXIS
from cnnkit.train.rules import Rules
from cnnkit.train.task import Task


def programs(task: Task, rules: Rules, workers: Workers, clocks: Clocks) -> dict[str, Compiled]:
    """By name: rounds, rounds of a single mini-batch, one that is timed, and the parts of a round.

    Args:
        task: what is trained.
        rules: how workers work together.
        workers: the mesh.
        clocks: whose ``compile`` runs while one is compiled.
    """
    rows, same = P(AXIS), P()
    views = _Views(task, rules)
    found: dict[str, tuple[Callable[..., Any], tuple[P, ...], tuple[int, ...]]] = {
        "rounds": (views.rounds, (rows, same, same, same, same, same, rows), (0,)),
        "single": (
            _Views(task, replace(rules, single=True)).rounds,
            (rows, same, same, same, same, same, rows),
            (0,),
        ),
        "timed": (views.timed, (rows, same, same, same, same, rows), (0,)),
        "local": (views.local, (rows, same, same, same, same), ()),
        "swap": (views.swap, (rows, rows, rows), ()),
        "merge": (views.merge, (rows, rows, rows, same, same), ()),
        "settle": (views.settle, (rows, same, same), ()),
        "arrived": (views.arrived, (rows, same, same, same), ()),
        "gather": (views.gather, (rows,), ()),
    }
    over = functools.partial(jax.shard_map, mesh=workers.mesh, out_specs=rows)
    return {
        name: Compiled(over(functools.partial(_one_view, body, specs), in_specs=specs), clocks, donate)
        for name, (body, specs, donate) in found.items()
    }


@dataclass(frozen=True)
class _Views:
    task: Task
    rules: Rules

    def rounds(self, carry, source, plan, firsts, counts, number, signals):
        with in_loop():
            carry = rounds.rounds(self.task, self.rules, carry, source, plan, firsts, counts, number)
        return carry, lax.all_gather((signals, carry.own.sums, carry.own.bad), AXIS)

    def timed(self, carry, source, plan, firsts, counts, signals):
        with in_loop():
            carry, stamps = rounds.timed_round(self.task, self.rules, carry, source, plan, firsts, counts)
        return carry, stamps, lax.all_gather((signals, carry.own.sums, carry.own.bad), AXIS)

    def local(self, carry, source, plan, firsts, counts):
        me = lax.axis_index(AXIS)
        begin = stamp(carry)
        first, count = after(begin, firsts[me]), counts[me]
        with in_loop():
            change, own = rounds.local_phase(self.task, self.rules, carry, source, plan, first, count)
        return change, own, (begin, stamp((change, own)))

    def swap(self, change, own, signals):
        begin = stamp((change, own))
        own = own._replace(examples=after(begin, own.examples))
        mean, total, own = rounds.exchanged(self.rules, change, own)
        told = lax.all_gather((signals, own.sums, own.bad), AXIS)
        return mean, total, own.error, told, (begin, stamp(mean))

    def merge(self, common, mean, total, lr, momentum):
        return rounds.merge(self.task, self.rules, common, mean, total, lr, momentum)

    def settle(self, carry, lr, momentum):
        return rounds.settled(self.task, self.rules, carry, lr, momentum)

    def arrived(self, carry, lr, momentum, layers):
        return rounds.arrived(self.task, self.rules, carry, lr, momentum, layers)

    def gather(self, tree):
        return lax.all_gather(tree, AXIS)


def _one_view(body: Callable[..., Any], specs: tuple[P, ...], *args: Any) -> Any:
    """body of one worker's view: rows come in and go out with their leading axis of one."""
    views = [
        jax.tree.map(lambda x: x[0], a) if spec == P(AXIS) else a for a, spec in zip(args, specs, strict=True)
    ]
    return jax.tree.map(lambda x: x[None], rounds.varying(body(*views)))
