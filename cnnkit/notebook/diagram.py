"""A tour of a network: its summary as a table, and a diagram of its layers, branches and merges."""

from typing import Any, NamedTuple

from matplotlib.patches import FancyBboxPatch

from cnnkit.layers import Layer, Summary, outline, summary
from cnnkit.layers.window import times
from cnnkit.notebook import layered, style
from cnnkit.notebook.style import PALETTE, Picture

LETTER, LINE, MOST = 0.068, 0.5, 400
KINDS = {
    "input": "black",
    "conv": "blue",
    "nin": "blue",
    "local": "blue",
    "dense": "vermilion",
    "max_pool": "green",
    "avg_pool": "green",
    "global_pool": "green",
    "concatenate": "orange",
    "sum": "orange",
    "batch_norm": "purple",
    "lrn": "purple",
    "dropout": "purple",
}


class Node(NamedTuple):
    """A box of the diagram: what it says, and the kind that colours it."""

    text: str
    kind: str


class Tour:
    """A network's summary and diagram; prints as the summary.

    Args:
        net: the network.
        shape: of one example, (H, W, C).
    """

    def __init__(self, net: Layer, shape: tuple[int, ...]) -> None:
        self.net, self.shape = net, tuple(shape)
        self.summary: Summary = summary(net, shape)

    def figure(self) -> Picture:
        """The diagram: data flow from top to bottom.

        Raises:
            ValueError: more than 400 layers, which no figure shows.
        """
        nodes, edges = flow(self.net, self.shape)
        if len(nodes) > MOST:
            raise ValueError(f"the network has {len(nodes)} layers; a diagram shows at most {MOST}")
        sizes = {i: 0.25 + LETTER * max(map(len, node.text.split("\n"))) for i, node in enumerate(nodes)}
        places, lines, (width, depth) = layered.layers(sizes, edges)
        figure, (ax,) = style.figure(max(2.5, width + 0.3), LINE * depth + 0.2)
        figure.colors = 64
        for _, xs, ys in lines:
            ax.plot(xs, ys, color="#999999", linewidth=1.0, zorder=1)
        for i, place in places.items():
            color = PALETTE.get(KINDS.get(nodes[i].kind, ""), "#888888")
            box = (place.x - sizes[i] / 2 + 0.05, place.y - 0.36), sizes[i] - 0.1, 0.72
            for face in ("white", color + "30"):
                shape = "round,pad=0,rounding_size=0.08"
                ax.add_patch(FancyBboxPatch(*box, shape, facecolor=face, edgecolor=color, zorder=2))
            ax.text(
                place.x,
                place.y,
                nodes[i].text,
                ha="center",
                va="center",
                fontsize=7,
                color=style.TEXT,
                zorder=3,
            )
        margin = max(0.2, (2.5 - width) / 2)
        ax.set_xlim(-margin, width + margin)
        ax.set_ylim(depth - 0.5, -0.5)
        ax.set_axis_off()
        return figure

    def __repr__(self) -> str:
        return str(self.summary)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        from cnnkit.notebook.face import picture_html

        figure = self.figure()
        data, metadata = figure._repr_mimebundle_()
        both = (
            '<div style="display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start">'
            f"<div>{self.summary._repr_html_()}</div><div>{picture_html(figure, 'diagram of the network')}</div></div>"
        )
        return data | {"text/plain": repr(self), "text/html": both}, metadata


def tour(net: Any, shape: tuple[int, ...] | None = None) -> Tour:
    """Shapes, parameters and FLOPs of every layer, beside a diagram of how they hang together.

    Args:
        net: a network, or a Run.
        shape: of one example, (H, W, C); a Run knows it.

    Raises:
        ValueError: a network without a shape.
    """
    if not isinstance(net, Layer):
        run = net
        inputs = run.augment.out_shape(run.data.shape) if run.augment else run.data.shape
        return Tour(run.net, shape or inputs)
    if shape is None:
        raise ValueError("a tour of a network needs shape=(H, W, C), that of one example: data.shape")
    return Tour(net, shape)


def flow(net: Layer, shape: tuple[int, ...]) -> tuple[list[Node], list[tuple[int, int]]]:
    """Boxes and the edges between them: a box for the input, each layer, and each merge.

    Args:
        net: the network.
        shape: of one example.
    """
    nodes, edges = [Node(f"input\n{times(shape)}", "input")], list[tuple[int, int]]()

    def add(text: str, kind: str, sources: list[int], out: tuple[int, ...]) -> int:
        nodes.append(Node(f"{text}\n{times(out)}", kind))
        edges.extend((source, len(nodes) - 1) for source in sources)
        return len(nodes) - 1

    def through(layer: Layer, source: int, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        if layer.parts and layer.join is not None:
            ends = [through(part, source, shape)[0] for part in layer.parts]
            out = outline(layer, shape)[2]
            merge = str(layer.config.get("merge", layer.kind))
            return add(merge, merge, ends, out), out
        if layer.parts and layer.kind == "serial":
            for part in layer.parts:
                source, shape = through(part, source, shape)
            return source, shape
        out = outline(layer, shape)[2]
        return add(layer.name, layer.kind, [source], out), out

    through(net, 0, tuple(shape))
    return nodes, edges
