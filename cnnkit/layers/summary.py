"""What a network is made of, before anything is compiled: shapes, parameters, FLOPs, memory."""

import html
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from cnnkit.layers.layer import Layer, Params, Shape, State
from cnnkit.layers.window import times


class Row(NamedTuple):
    """One layer of a summary; depth is how many combinators it stands in, parts of combinators follow it."""

    layer: str
    shape: Shape
    parameters: int
    flops: int
    activation_bytes: int
    depth: int = 0


@dataclass(frozen=True)
class Summary:
    """A table of a network's layers; prints as text, and as HTML in a notebook.

    Args:
        rows: one a layer, with those inside a combinator below it.
        input: shape of one example.
    """

    rows: tuple[Row, ...]
    input: Shape

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(row.parameters for row in self.rows if row.depth == 0)

    @property
    def flops(self) -> int:
        """Additions and multiplications of one example's forward pass."""
        return sum(row.flops for row in self.rows if row.depth == 0)

    @property
    def activation_bytes(self) -> int:
        """Bytes of one example's activations in float32, all kept for the backward pass."""
        return sum(row.activation_bytes for row in self.rows if row.depth == 0)

    def cells(self) -> list[tuple[str, ...]]:
        """The table's cells as text: head, rows, total."""
        head = ("layer", "output", "parameters", "FLOPs", "activations")
        first = ("input", times(self.input), "", "", "")
        total = ("total", "", f"{self.parameters:,}", _short(self.flops), _bytes(self.activation_bytes))
        return [head, first, *(_cells(row) for row in self.rows), total]

    def __str__(self) -> str:
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = [
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths)))
            for line in cells
        ]
        rule = "─" * len(lines[0])
        return "\n".join(line.rstrip() for line in [lines[0], rule, *lines[1:-1], rule, lines[-1]])

    def _repr_html_(self) -> str:
        lines = []
        for i, cells in enumerate(self.cells()):
            tag = "th" if i in (0, len(self.rows) + 2) else "td"
            texts = [html.escape(c).replace("  ", "&ensp;") for c in cells]
            sides = ["left", "left", "right", "right", "right"]
            lines.append("".join(f'<{tag} style="text-align:{s}">{t}</{tag}>' for s, t in zip(sides, texts)))
        return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def summary(net: Layer, shape: Shape) -> Summary:
    """Output shape, parameters, FLOPs and activation bytes of every layer; nothing is computed or compiled.

    Args:
        net: the network.
        shape: of one example, (H, W, C) or (F,).

    Raises:
        ShapeError: a layer cannot take what the layers before it give.

    >>> from cnnkit.layers import dense, relu, serial
    >>> print(summary(serial(dense(16), relu(), dense(10)), (64,)))
    layer       output  parameters  FLOPs  activations
    ──────────────────────────────────────────────────
    input       64
    0 dense 16  16           1,040  2.1 k         64 B
    1 relu      16               0     16         64 B
    2 dense 10  10             170    330         40 B
    ──────────────────────────────────────────────────
    total                    1,210  2.4 k        168 B
    """
    outline(net, shape)
    rows, _ = _rows(net, tuple(shape), net.name, 0)
    if net.kind == "serial":
        rows = [row._replace(depth=row.depth - 1) for row in rows[1:]]
    return Summary(tuple(rows), tuple(shape))


def outline(net: Layer, shape: Shape) -> tuple[Params, State, Shape]:
    """What ``net.init`` gives, with shapes and types in place of arrays; nothing is computed.

    Args:
        net: the network.
        shape: of one example.

    >>> from cnnkit.layers import dense
    >>> params, _, out = outline(dense(10), (64,))
    >>> params["w"].shape, out
    ((64, 10), (10,))
    """
    out: list[Any] = []

    def init(key):
        params, state, result = net.init(key, tuple(shape))
        out.append(result)
        return params, state

    params, state = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    return params, state, out[0]


def _rows(layer: Layer, shape: Shape, name: str, depth: int) -> tuple[list[Row], Shape]:
    params, _, out = outline(layer, shape)
    parameters = sum(p.size for p in jax.tree.leaves(params))
    inner: list[Row] = []
    if not layer.parts:
        return [Row(name, out, parameters, layer.flops(shape, out), 4 * math.prod(out), depth)], out
    reaches = shape
    for i, part in enumerate(layer.parts):
        made, result = _rows(part, reaches, f"{i} {part.name}", depth + 1)
        inner += made
        if layer.kind == "serial":
            reaches = result
    parts = [row for row in inner if row.depth == depth + 1]
    flops, bytes_ = sum(row.flops for row in parts), sum(row.activation_bytes for row in parts)
    return [Row(name, out, parameters, flops, bytes_, depth), *inner], out


def _cells(row: Row) -> tuple[str, ...]:
    numbers = f"{row.parameters:,}", _short(row.flops), _bytes(row.activation_bytes)
    return "  " * row.depth + row.layer, times(row.shape), *numbers


def _short(number: float) -> str:
    for unit in ("", " k", " M", " G"):
        if number < 1000:
            return f"{number:.3g}{unit}" if number >= 100 or not unit else f"{number:.2g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


def _bytes(number: float) -> str:
    return _short(number).strip() + ("B" if number >= 1000 else " B")
