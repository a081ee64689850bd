"""Where to draw the nodes of a directed acyclic graph: in layers, with few crossings."""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

Node = Any
_BEND = 0.15


class Place(NamedTuple):
    """The middle of a node: x in inches, y in layers from the top."""

    x: float
    y: float


def layers(
    sizes: Mapping[Node, float], edges: Sequence[tuple[Node, Node]], sweeps: int = 8
) -> tuple[dict[Node, Place], list[tuple[tuple[Node, Node], list[float], list[float]]], tuple[float, int]]:
    """Places for nodes and bends for edges.

    Each node lies one layer below the lowest that points to it; edges over several layers are led through
    each of them; layers are ordered by the mean place of neighbours, sweeping down and up (Sugiyama,
    Tagawa and Toda 1981).

    Args:
        sizes: node -> width in inches.
        edges: (from, to), without cycles.
        sweeps: over the layers.

    Returns:
        places, lines as (edge, xs, ys), and (width in inches, number of layers).

    >>> places, lines, (width, depth) = layers({"a": 1.0, "b": 1.0, "c": 1.0}, [("a", "b"), ("b", "c"), ("a", "c")])
    >>> [places[n].y for n in "abc"], depth, len(lines[2][1])
    ([0, 1, 2], 3, 3)
    """
    level = _levels(sizes, edges)
    rows: list[list[Hashable]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for node in sizes:
        rows[level[node]].append(node)
    chains = {edge: _chain(edge, level, rows) for edge in edges}
    above: dict[Hashable, list[Hashable]] = {}
    below: dict[Hashable, list[Hashable]] = {}
    for chain in chains.values():
        for a, b in itertools.pairwise(chain):
            below.setdefault(a, []).append(b)
            above.setdefault(b, []).append(a)
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for i in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            _sort(rows[i], rows[i - 1 if down else i + 1], above if down else below)
    at = _straighten(rows, lambda node: sizes.get(node, _BEND), above, below, sweeps)
    left = min((x - sizes.get(n, _BEND) / 2 for n, x in at.items()), default=0.0)
    width = max((x + sizes.get(n, _BEND) / 2 for n, x in at.items()), default=0.0) - left
    places = {node: Place(at[node] - left, y) for y, row in enumerate(rows) for node in row}
    lines = [(edge, *map(list, zip(*(places[node] for node in chain)))) for edge, chain in chains.items()]
    return {node: places[node] for node in sizes}, lines, (width, len(rows))  # type: ignore[return-value]


def _straighten(rows, size, above, below, sweeps: int) -> dict[Hashable, float]:
    """x of every node: near the mean of its neighbours, in the row's order, without overlap."""
    at: dict[Hashable, float] = {}
    for sweep in range(sweeps + 1):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            offsets, x = [], 0.0
            for node in row:
                offsets.append(x + size(node) / 2)
                x += size(node)
            wish = []
            for node, offset in zip(row, offsets):
                near = [at[n] for n in (*above.get(node, ()), *below.get(node, ())) if n in at]
                wish.append((sum(near) / len(near) if near else offset - x / 2) - offset)
            at.update((node, v + offset) for node, v, offset in zip(row, _rising(wish), offsets))
    return at


def _rising(wish: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to the wishes in squares: neighbours that clash share their mean."""
    blocks: list[list[float]] = []
    for value in wish:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            value, n = blocks.pop()
            before, m = blocks[-1]
            blocks[-1] = [(before * m + value * n) / (m + n), m + n]
    return [value for value, n in blocks for _ in range(int(n))]


def _levels(sizes, edges) -> dict[Node, int]:
    into: dict[Node, int] = dict.fromkeys(sizes, 0)
    out: dict[Node, list[Node]] = {node: [] for node in sizes}
    for a, b in edges:
        into[b] += 1
        out[a].append(b)
    level = dict.fromkeys(sizes, 0)
    ready = [node for node, n in into.items() if n == 0]
    for node in ready:
        for b in out[node]:
            level[b] = max(level[b], level[node] + 1)
            into[b] -= 1
            if into[b] == 0:
                ready.append(b)
    return level


def _chain(edge, level, rows) -> list[Hashable]:
    a, b = edge
    bends: list[Hashable] = [("bend", edge, y) for y in range(level[a] + 1, level[b])]
    for bend, y in zip(bends, range(level[a] + 1, level[b])):
        rows[y].append(bend)
    return [a, *bends, b]


def _sort(row, beside, neighbours) -> None:
    place = {node: i for i, node in enumerate(beside)}
    own = {node: i for i, node in enumerate(row)}

    def mean(node) -> float:
        near = [place[n] for n in neighbours.get(node, ())]
        return sum(near) / len(near) if near else own[node] * len(beside) / max(len(row), 1)

    row.sort(key=mean)
