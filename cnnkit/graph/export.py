"""A graph as DOT and JSON, a timeline as a Chrome trace."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnkit.graph.bigraph import Blob, Graph
from cnnkit.graph.timeline import Timeline

# Okabe and Ito's colours, by kind of resource.
COLOURS = {
    "compute": "#0072B2",
    "copy_in": "#009E73",
    "copy_out": "#56B4E9",
    "network": "#D55E00",
    "cpu": "#E69F00",
}


def dot(graph: Graph, costs: Mapping[str, float] | None = None) -> str:
    """The graph in Graphviz's language: operations as boxes in their resource's colour, blobs as ellipses.

    Args:
        graph: the graph.
        costs: seconds, written into the boxes.

    >>> g = Graph("g", inputs=["x"])
    >>> _ = g.add("double", None, "x", "y")
    >>> print(dot(g))
    digraph "g" {
      rankdir=TB; node [fontname="sans-serif", fontsize=10];
      "op double" [shape=box, style=filled, fillcolor="#E69F0060", color="#E69F00", label="double\\ncpu"];
      "blob x" [shape=ellipse, label="x"];
      "blob y" [shape=ellipse, label="y"];
      "blob x" -> "op double";
      "op double" -> "blob y";
    }
    """
    lines = [f"digraph {_quote(graph.name)} {{", '  rankdir=TB; node [fontname="sans-serif", fontsize=10];']
    for name, op in graph.ops.items():
        colour = COLOURS[op.on.kind]
        label = f"{name}\n{op.on}" + (f", {1e3 * costs[name]:.3g} ms" if costs and name in costs else "")
        lines.append(
            f'  {_quote(f"op {name}")} [shape=box, style=filled, fillcolor="{colour}60", color="{colour}", '
            f"label={_quote(label)}];"
        )
    for blob in graph.blobs.values():
        shape = "" if blob.shape is None else "\n" + "×".join(map(str, blob.shape or ("scalar",)))
        lines.append(f"  {_quote(f'blob {blob.name}')} [shape=ellipse, label={_quote(blob.name + shape)}];")
    for name, op in graph.ops.items():
        lines += [f"  {_quote(f'blob {b}')} -> {_quote(f'op {name}')};" for b in dict.fromkeys(op.inputs)]
        lines += [f"  {_quote(f'op {name}')} -> {_quote(f'blob {b}')};" for b in op.outputs]
    return "\n".join([*lines, "}"])


def to_json(graph: Graph) -> str:
    """The graph as JSON: everything but the operations' functions and the constants' values."""
    return json.dumps(
        {
            "name": graph.name,
            "inputs": list(graph.inputs),
            "constants": list(graph.constants),
            "outputs": list(graph.outputs),
            "blobs": [
                {"name": b.name, "shape": b.shape, "dtype": b.dtype, "bytes": b.nbytes}
                for b in graph.blobs.values()
            ],
            "operations": [
                {
                    "name": op.name,
                    "inputs": op.inputs,
                    "outputs": op.outputs,
                    "on": str(op.on),
                    "kind": op.kind,
                    "cost": op.cost,
                    "flops": op.flops,
                    "wait": op.wait,
                    "ordered": op.ordered,
                    "ahead": op.ahead,
                }
                for op in graph.ops.values()
            ],
        },
        indent=1,
        ensure_ascii=False,
    )


def from_json(text: str) -> Graph:
    """The graph that `to_json` wrote, to look at and analyse: its operations have no functions."""
    data = json.loads(text)
    blobs = {
        b["name"]: Blob(b["name"], None if b["shape"] is None else tuple(b["shape"]), b["dtype"])
        for b in data["blobs"]
    }
    graph = Graph(
        data["name"], [blobs[name] for name in [*data["inputs"], *data["constants"]]], data["outputs"]
    )
    for op in data["operations"]:
        name, inputs, outputs = op.pop("name"), op.pop("inputs"), op.pop("outputs")
        graph.add(name, None, inputs, [blobs[b] for b in outputs], **op)
    return graph


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The timeline in Chrome's trace format, for chrome://tracing or Perfetto: a row a thread, in µs.

    Args:
        timeline: measured by a scheduler, or predicted by `simulate`.
    """
    resources = sorted({resource for resource, _ in timeline.lanes})
    pid = {resource: i for i, resource in enumerate(resources)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid[r], "args": {"name": r}} for r in resources
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": pid[r], "tid": t, "args": {"name": f"{r} {t}"}}
        for r, t in timeline.lanes
    ]
    events += [
        {
            "ph": "X",
            "name": e.op,
            "cat": e.resource,
            "pid": pid[e.resource],
            "tid": e.thread,
            "ts": 1e6 * e.start,
            "dur": 1e6 * (e.end - e.start),
            "args": {"item": e.item, "waited_us": 1e6 * (e.start - e.ready)},
        }
        for e in timeline
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save(path: str | Path, what: Graph | Timeline) -> Path:
    """Writes a graph as .dot or .json, a timeline as a Chrome trace .json.

    Raises:
        ValueError: another ending.
    """
    path = Path(path)
    if isinstance(what, Timeline) and path.suffix == ".json":
        text = json.dumps(chrome_trace(what))
    elif isinstance(what, Graph) and path.suffix in (".dot", ".json"):
        text = dot(what) if path.suffix == ".dot" else to_json(what)
    else:
        able = ".json (a Chrome trace)" if isinstance(what, Timeline) else ".dot or .json"
        raise ValueError(f"{path.name}: a {type(what).__name__.lower()} is written as {able}")
    path.write_text(text, encoding="utf-8")
    return path


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
