"""Figures of graphs: what waits for what, in layers, and what ran when, as a Gantt chart."""

import re
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, FancyBboxPatch, Patch

from cnnkit.graph.analyse import analyse
from cnnkit.graph.bigraph import Graph
from cnnkit.graph.export import COLOURS
from cnnkit.graph.timeline import Timeline
from cnnkit.notebook.layered import Place, layers
from cnnkit.notebook.style import COLORS, TEXT, Picture, figure, label

__all__ = ["draw", "gantt"]

_LETTER, _LINE, _MOST, _LONGEST = 0.068, 0.46, 400, 30


def gantt(timeline: Timeline, unit: str | None = None, width: float = 7.0) -> Picture:
    """What ran when: a row for each thread of each resource, a bar for each operation.

    Up to seven operations have a colour each; more take their resource's. In a stream the bars of every
    other item are paler, so that items under way at once can be told apart.

    Args:
        timeline: measured (``Handle.timeline``, ``Stream.timeline``) or predicted (`simulate`).
        unit: ``"s"``, ``"ms"`` or ``"µs"``; by default whichever suits the length. Predicted in units of
            one operation's cost, use ``"s"`` and read it so.
        width: inches.

    Raises:
        ValueError: nothing has run.
    """
    if not len(timeline):
        raise ValueError("the timeline is empty; run the graph first, or predict one with simulate(graph)")
    unit = unit or ("s" if timeline.seconds > 2 else "ms" if timeline.seconds > 2e-3 else "µs")
    scale = {"s": 1.0, "ms": 1e3, "µs": 1e6}[unit]
    lanes = timeline.lanes
    row = {lane: i for i, lane in enumerate(lanes)}
    names = list(dict.fromkeys(e.op for e in timeline))
    each = len(names) <= len(COLORS)
    picture, (ax,) = figure(width, 0.75 + 0.27 * len(lanes))
    bars: dict[tuple[int, str, bool], list[tuple[float, float]]] = {}
    for e in timeline:
        colour = COLORS[names.index(e.op)] if each else COLOURS[e.resource.partition(":")[0]]
        bar = (scale * e.start, scale * (e.end - e.start))
        bars.setdefault((row[e.resource, e.thread], colour, e.item % 2 == 1), []).append(bar)
    for (y, colour, odd), spans in bars.items():
        alpha = 0.55 if odd else 1.0
        ax.broken_barh(
            spans, (y - 0.38, 0.76), facecolor=colour, alpha=alpha, edgecolor="white", linewidth=0.4
        )
    _name_bars(ax, timeline, row, scale, width)
    several = {r for r, t in lanes if t > 0}
    ax.set_yticks(range(len(lanes)), [f"{r} {t}" if r in several else r for r, t in lanes])
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.set_xlim(0, scale * timeline.seconds)
    ax.grid(axis="y", visible=False)
    label(ax, f"time ({unit})")
    if each and len(names) > 1:
        shown = [Patch(facecolor=COLORS[i], label=name) for i, name in enumerate(names)]
        picture.legend(handles=shown, loc="outside upper left", ncols=4, fontsize=8, frameon=False)
    return picture


def _name_bars(ax: Axes, timeline: Timeline, row: Mapping, scale: float, width: float) -> None:
    letters = width * 0.85 / _LETTER
    for e in timeline:
        room = (e.end - e.start) / timeline.seconds * letters
        if room > len(e.op) + 1:
            middle = scale * (e.start + e.end) / 2
            ax.text(
                middle, row[e.resource, e.thread], e.op, ha="center", va="center", fontsize=7, color="white"
            )


def draw(
    graph: Graph, costs: Mapping[str, float] | None = None, *, blobs: bool = False, critical: bool = True
) -> Picture:
    """The graph in layers from top to bottom: each operation below all that it waits for.

    Args:
        graph: the graph.
        costs: seconds of each operation, written into the boxes; by default the operations' own.
        blobs: draw the blobs between the operations too, as ellipses.
        critical: draw the critical path's edges thick.

    Raises:
        ValueError: more than 400 nodes, which no figure shows.
    """
    if len(graph.ops) + blobs * len(graph.blobs) > _MOST:
        raise ValueError(
            f"{graph.name} has {len(graph.ops)} operations; a figure shows at most {_MOST} nodes: fold calls, "
            "leave out blobs, or write it for Graphviz with save('graph.dot', graph)"
        )
    found = analyse(graph, costs)
    known = costs is not None or any(op.cost is not None for op in graph.ops.values())
    text = {("op", n): _short(n) + (f"\n{_duration(found.costs[n])}" if known else "") for n in graph.ops}
    edges = [(("op", a), ("op", b)) for a, after in graph.edges().items() for b in after]
    if blobs:
        text |= {("blob", b): _short(b) for b in graph.blobs}
        edges = [(("blob", b), ("op", n)) for n, op in graph.ops.items() for b in dict.fromkeys(op.inputs)]
        edges += [(("op", n), ("blob", b)) for n, op in graph.ops.items() for b in op.outputs]
    sizes = {node: 0.25 + _LETTER * max(map(len, words.split("\n"))) for node, words in text.items()}
    places, lines, (width, depth) = layers(sizes, edges)
    picture, (ax,) = figure(max(3.6, width + 0.3), _LINE * depth + 0.7)
    path = set(zip(found.critical_path, found.critical_path[1:])) if critical else set()
    for (a, b), xs, ys in lines:
        thick = _on_path(graph, path, a, b)
        ax.plot(xs, ys, color=TEXT if thick else "#999999", linewidth=1.8 if thick else 0.8, zorder=1)
    for node, place in places.items():
        _box(ax, graph, node, place, sizes[node], text[node])
    margin = max(0.3, 3.6 - width) / 2
    ax.set_xlim(-margin, width + margin)
    ax.set_ylim(depth - 0.4, -0.6)
    ax.set_axis_off()
    kinds = list(dict.fromkeys(op.on.kind for op in graph.ops.values()))
    shown = [Patch(facecolor=COLOURS[k] + "40", edgecolor=COLOURS[k], label=k) for k in kinds]
    picture.legend(
        handles=shown, loc="outside lower left", ncols=5, fontsize=8, frameon=False, labelcolor=TEXT
    )
    return picture


def _on_path(graph: Graph, path: set[tuple[str, str]], a: tuple[str, str], b: tuple[str, str]) -> bool:
    if a[0] == b[0]:
        return (a[1], b[1]) in path
    if b[0] == "blob":
        return any((a[1], r) in path for r in graph.readers(b[1]))
    return (graph.writer(a[1]), b[1]) in path


def _box(ax: Axes, graph: Graph, node: tuple[str, str], place: Place, size: float, text: str) -> None:
    if node[0] == "blob":
        ellipse = Ellipse(
            (place.x, place.y), size - 0.05, 0.55, facecolor="white", edgecolor="#999999", zorder=2
        )
        ax.add_patch(ellipse)
    else:
        colour = COLOURS[graph.ops[node[1]].on.kind]
        corner, shape = (place.x - size / 2 + 0.05, place.y - 0.3), "round,pad=0,rounding_size=0.08"
        # White below the pale colour, so that no edge shines through.
        for face in ("white", colour + "40"):
            ax.add_patch(
                FancyBboxPatch(corner, size - 0.1, 0.6, shape, facecolor=face, edgecolor=colour, zorder=2)
            )
    ax.text(place.x, place.y, text, ha="center", va="center", fontsize=7, color=TEXT, zorder=3)


def _short(name: str) -> str:
    """A name for a box: of the layers around it the numbers alone, and no options where it is still long.

    >>> _short("1 branch merge=concatenate / 0 serial / 0 conv 8 3×3 padding=same.w update")
    '1/0/0 conv 8 3×3.w update'
    """
    *around, own = name.split(" / ")
    if len(name) > _LONGEST and all(part.split(" ")[0].isdigit() for part in around):
        name = "/".join([*(part.split(" ")[0] for part in around), own])
    if len(name) > _LONGEST:
        name = re.sub(r" \w+=[^ .]*", "", name)
    return name if len(name) <= _LONGEST else f"{name[:12]}…{name[-16:]}"


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
