"""What running a graph needs to know, worked out once: numbers in place of names."""

import itertools
from collections.abc import Mapping, Sequence

from cnnkit.graph.analyse import own_costs, to_end
from cnnkit.graph.bigraph import Graph, GraphError


class Plan:
    """A graph with its operations numbered by urgency and its blobs by slot.

    Operation numbers grow as the way to the graph's end shortens, so that the smallest number among the
    ready ones is the most urgent. Edges are counted once for a pair of operations. Across items of a
    stream an operation waits for the item before where it is ordered, where it reads a carried blob, and
    where it uses the network, whose users talk in the same order on every machine.

    Args:
        graph: the graph.
        carry: input blob -> the blob of the item before that it takes its value from.
    """

    def __init__(self, graph: Graph, carry: Mapping[str, str] | None = None):
        order = graph.order()
        self.graph = graph
        self.carry = dict(carry or {})
        self._check(graph)
        far = to_end(graph, order, _known_costs(graph))
        place = {name: i for i, name in enumerate(order)}
        self.names = sorted(order, key=lambda name: (-far[name], place[name]))
        self.number = {name: i for i, name in enumerate(self.names)}
        self.ops = [graph.ops[name] for name in self.names]
        self.where = [str(op.on) for op in self.ops]
        self.calls = [op.run for op in self.ops]
        self.waits = [op.wait for op in self.ops]
        self.arity = [len(op.outputs) for op in self.ops]
        self.slot = {blob: i for i, blob in enumerate(graph.blobs)}
        self.reads = [tuple(self.slot[b] for b in op.inputs) for op in self.ops]
        self.writes = [tuple(self.slot[b] for b in op.outputs) for op in self.ops]
        self.outputs = {name: self.slot[name] for name in graph.outputs}
        self._edges(graph, order)
        self._crossings(graph, order)
        self._lifetimes()

    def _check(self, graph: Graph) -> None:
        for op in graph.ops.values():
            if op.run is None:
                raise GraphError(
                    f"{graph.name}: operation {op.name!r} has no function; the graph can be looked at, not run"
                )
        for into, out in self.carry.items():
            if into not in graph.inputs or out not in graph.blobs:
                wrong = f"{into!r} is no input" if into not in graph.inputs else f"there is no blob {out!r}"
                raise GraphError(
                    f"{graph.name}: carry {into!r} ← {out!r}: {wrong}; carry maps an input to the blob whose "
                    "value of the item before it takes"
                )

    def _edges(self, graph: Graph, order: Sequence[str]) -> None:
        edges = graph.edges()
        after = [[self.number[a] for a in edges[name]] for name in self.names]
        for chain in self._network(order):
            for a, b in itertools.pairwise(chain):
                if b not in after[a]:
                    after[a].append(b)
        self.consumers = [tuple(a) for a in after]
        self.needs = [0] * len(after)
        for targets in after:
            for target in targets:
                self.needs[target] += 1
        self.starts = [i for i, n in enumerate(self.needs) if n == 0]

    def _network(self, order: Sequence[str]) -> list[list[int]]:
        lines: dict[str, list[int]] = {}
        for name in order:
            op = self.graph.ops[name]
            if op.on.kind == "network":
                lines.setdefault(str(op.on), []).append(self.number[name])
        return list(lines.values())

    def _crossings(self, graph: Graph, order: Sequence[str]) -> None:
        pairs = {(i, i) for i, op in enumerate(self.ops) if op.ordered}
        pairs |= {(line[-1], line[0]) for line in self._network(order)}
        self.handed: list[list[tuple[int, int]]] = [[] for _ in self.ops]
        self.handed_inputs: list[tuple[int, int]] = []
        for into, out in self.carry.items():
            slots = (self.slot[out], self.slot[into])
            writer = graph.writer(out)
            if writer is None:
                self.handed_inputs.append(slots)
                continue
            self.handed[self.number[writer]].append(slots)
            pairs |= {(self.number[writer], self.number[r]) for r in graph.readers(into)}
        self.next_consumers: list[list[int]] = [[] for _ in self.ops]
        self.next_needs = [0] * len(self.ops)
        for a, b in sorted(pairs):
            self.next_consumers[a].append(b)
            self.next_needs[b] += 1
        self.aheads = [(i, op.ahead) for i, op in enumerate(self.ops) if op.ahead is not None]

    def _lifetimes(self) -> None:
        self.frees = [tuple(set(slots)) for slots in self.reads]
        self.uses = [0] * len(self.slot)
        for slots in self.frees:
            for slot in slots:
                self.uses[slot] += 1
        # A slot that is handed out, or on to the next item, is never counted down to nothing.
        for slot in (*self.outputs.values(), *(self.slot[out] for out in self.carry.values())):
            self.uses[slot] += 1


def plan_of(graph: Graph, carry: Mapping[str, str] | None = None) -> Plan:
    """The graph's plan, kept beside it for as long as neither it nor carry changes."""
    mark = (len(graph.ops), len(graph.blobs), graph.inputs, graph.outputs, tuple((carry or {}).items()))
    if mark not in graph.plans:
        graph.plans = {mark: Plan(graph, carry)}
    return graph.plans[mark]


def _known_costs(graph: Graph) -> dict[str, float]:
    if all(op.cost is not None for op in graph.ops.values()):
        return own_costs(graph, None)
    return dict.fromkeys(graph.ops, 1.0)
