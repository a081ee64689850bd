"""What a graph allows: levels, width, the critical path, what may run at once, the speed-up of that."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cnnkit.graph.bigraph import Graph
from cnnkit.graph.timeline import Event, Timeline

Costs = Mapping[str, float]


@dataclass(frozen=True)
class Analysis:
    """What `analyse` found.

    Args:
        order: the operations in an order in which they can run.
        levels: operations by the longest way to them; those of one level may run at once.
        costs: seconds of each operation, or 1 each where none is known.
        critical_path: the operations of the longest chain by cost.
        critical: its cost: no machine runs the graph faster.
        work: cost of all operations, which is what one thread takes.
        by_resource: cost of the operations on each resource.
    """

    order: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    costs: Costs
    critical_path: tuple[str, ...]
    critical: float
    work: float
    by_resource: Mapping[str, float]
    _after: tuple[int, ...]

    @property
    def speedup(self) -> float:
        """work / critical: what any number of threads can gain over one (the span law)."""
        return self.work / self.critical if self.critical else 1.0

    def bound(self, threads: Mapping[str, int] | None = None) -> float:
        """Seconds below which these resources cannot run the graph: max(critical, work_r / threads_r).

        Args:
            threads: of each resource; 1 where none is named.
        """
        shares = [cost / (threads or {}).get(name, 1) for name, cost in self.by_resource.items()]
        return max([self.critical, *shares])

    def together(self, a: str, b: str) -> bool:
        """Whether two operations may run at once: neither waits for the other."""
        if a == b:
            return False
        i, j = self._place[a], self._place[b]
        return not (self._after[i] >> j & 1 or self._after[j] >> i & 1)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.order)}

    @cached_property
    def width(self) -> int:
        """The most operations that may run at once, exactly.

        Dilworth: as many as there are chains in the smallest cover, operations minus the largest matching
        of each with one that comes after it.
        """
        return len(self.order) - _matching(self._after)

    def __str__(self) -> str:
        path = " → ".join(
            self.critical_path
            if len(self.critical_path) < 9
            else [*self.critical_path[:4], "…", *self.critical_path[-4:]]
        )
        return (
            f"{len(self.order)} operations on {len(self.levels)} levels, at most {self.width} at once; "
            f"work {self.work:.4g}, critical path {self.critical:.4g} ({path}), speed-up at most {self.speedup:.2f}"
        )


def analyse(graph: Graph, costs: Costs | None = None) -> Analysis:
    """Finds what may run at once in a graph, and how much that can gain.

    Args:
        graph: the graph.
        costs: seconds of each operation: measured (`Timeline.costs`) or estimated (`estimate`). By default
            the operations' own, and 1 each where none has one.

    Raises:
        GraphError: a cycle or a missing input, by name.
        ValueError: costs for some operations but not for all.

    >>> g = Graph(inputs=["x"])
    >>> _ = g.add("a", None, "x", cost=1), g.add("b", None, "x", cost=3), g.add("c", None, ["a", "b"], cost=1)
    >>> print(analyse(g))
    3 operations on 2 levels, at most 2 at once; work 5, critical path 4 (b → c), speed-up at most 1.25
    """
    order = graph.order()
    cost = own_costs(graph, costs)
    level: dict[str, int] = {}
    for name in order:
        level[name] = 1 + max((level[b] for b in graph.before(name)), default=-1)
    levels: list[list[str]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for name in order:
        levels[level[name]].append(name)
    ahead = to_end(graph, order, cost)
    path = [max(order, key=ahead.__getitem__)] if order else []
    while path and (after := graph.after(path[-1])):
        path.append(max(after, key=ahead.__getitem__))
    by_resource: dict[str, float] = {}
    for name in order:
        on = str(graph.ops[name].on)
        by_resource[on] = by_resource.get(on, 0.0) + cost[name]
    return Analysis(
        order=tuple(order),
        levels=tuple(map(tuple, levels)),
        costs=cost,
        critical_path=tuple(path),
        critical=ahead[path[0]] if path else 0.0,
        work=sum(cost.values()),
        by_resource=by_resource,
        _after=_closure(graph, order),
    )


def simulate(graph: Graph, costs: Costs | None = None, threads: Mapping[str, int] | None = None) -> Timeline:
    """The timeline that costs predict: each resource takes the ready operation with the longest way to go.

    Args:
        graph: the graph.
        costs: as for `analyse`.
        threads: of each resource; 1 where none is named.

    >>> g = Graph(inputs=["x"])
    >>> _ = g.add("copy", None, "x", on="copy_in", cost=2), g.add("own", None, "x", on="compute", cost=3)
    >>> simulate(g).seconds
    3.0
    """
    order, cost = graph.order(), own_costs(graph, costs)
    ahead = to_end(graph, order, cost)
    left = {name: len(graph.before(name)) for name in order}
    ready_at = dict.fromkeys(order, 0.0)
    free: dict[str, list[int]] = {}
    queue: dict[str, list[tuple[float, int, str]]] = {}
    place = {name: i for i, name in enumerate(order)}
    ends: list[tuple[float, int, str, int]] = []
    events = []

    def push(name: str) -> None:
        on = str(graph.ops[name].on)
        heapq.heappush(queue.setdefault(on, []), (-ahead[name], place[name], name))
        free.setdefault(on, list(range((threads or {}).get(on, 1))))

    def start(now: float) -> None:
        for on, waiting in queue.items():
            while waiting and free[on]:
                name, thread = heapq.heappop(waiting)[2], heapq.heappop(free[on])
                heapq.heappush(ends, (now + cost[name], place[name], name, thread))
                events.append(Event(name, 0, on, thread, ready_at[name], now, now + cost[name]))

    for name in order:
        if left[name] == 0:
            push(name)
    start(0.0)
    while ends:
        now, _, name, thread = heapq.heappop(ends)
        heapq.heappush(free[str(graph.ops[name].on)], thread)
        for later in graph.after(name):
            left[later] -= 1
            if left[later] == 0:
                ready_at[later] = now
                push(later)
        if not ends or ends[0][0] > now:
            start(now)
    return Timeline(events)


def own_costs(graph: Graph, costs: Costs | None) -> dict[str, float]:
    """The costs given, else the operations' own, else 1 each; known for all or an error."""
    given = (
        dict(costs)
        if costs is not None
        else {n: op.cost for n, op in graph.ops.items() if op.cost is not None}
    )
    if costs is None and not given:
        return dict.fromkeys(graph.ops, 1.0)
    missing = [name for name in graph.ops if name not in given]
    if missing:
        some = ", ".join(map(repr, missing[:5])) + (
            f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        )
        raise ValueError(
            f"{graph.name}: costs are known for {len(graph.ops) - len(missing)} of {len(graph.ops)} operations, "
            f"not for {some}; give all of them or none"
        )
    return {name: float(given[name]) for name in graph.ops}


def to_end(graph: Graph, order: list[str], cost: Costs) -> dict[str, float]:
    """Cost of the longest chain from each operation, itself included, to an end of the graph."""
    ahead: dict[str, float] = {}
    after = graph.edges()
    for name in reversed(order):
        ahead[name] = cost[name] + max((ahead[a] for a in after[name]), default=0.0)
    return ahead


def _closure(graph: Graph, order: list[str]) -> tuple[int, ...]:
    place = {name: i for i, name in enumerate(order)}
    edges = graph.edges()
    after = [0] * len(order)
    for i in reversed(range(len(order))):
        for name in edges[order[i]]:
            after[i] |= 1 << place[name] | after[place[name]]
    return tuple(after)


def _matching(after: tuple[int, ...]) -> int:
    match: dict[int, int] = {}
    taken = dead = 0
    for root in range(len(after)):
        lefts, seen = [root], dead
        rights: list[int] = []
        while lefts:
            able = after[lefts[-1]] & ~seen
            if not able:
                lefts.pop()
                if rights:
                    rights.pop()
                continue
            pick = (able & ~taken) or able
            bit = pick & -pick
            seen |= bit
            right = bit.bit_length() - 1
            rights.append(right)
            if right not in match:
                match.update(zip(rights, lefts))
                taken |= bit
                break
            lefts.append(match[right])
        else:
            # A search that failed has seen only what no later search can use either.
            dead = seen
    return len(match)
