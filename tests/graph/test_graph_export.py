import json

import pytest

from cnnkit.graph import (
    Blob,
    Event,
    Graph,
    Timeline,
    analyse,
    chrome_trace,
    dot,
    from_json,
    save,
    simulate,
    to_json,
)


def example() -> Graph:
    g = Graph("input", inputs=[Blob("order", (32,), "int32")], outputs=["x"])
    g.input(Blob("table", (4,), "float32"), [1, 2, 3, 4])
    g.add("read", None, ["order", "table"], 'by"tes', cost=2.0, ordered=False)
    g.add("copy", None, 'by"tes', Blob("x", (32, 8), "uint8"), on="copy_in:1", cost=1.0, ahead=2, kind="copy")
    return g


def test_dot_names_shapes_resources_and_edges():
    text = dot(example(), {"read": 2e-3})
    assert text.startswith('digraph "input" {')
    assert (
        '"op read" [shape=box, style=filled, fillcolor="#E69F0060", color="#E69F00", label="read\\ncpu, 2 ms"];'
        in text
    )
    assert (
        '"op copy" [shape=box, style=filled, fillcolor="#009E7360", color="#009E73", label="copy\\ncopy_in:1"];'
        in text
    )
    assert '"blob x" [shape=ellipse, label="x\\n32×8"];' in text
    assert '"blob by\\"tes" -> "op copy";' in text
    assert '"op copy" -> "blob x";' in text
    assert text.count("->") == 5


def test_json_and_back():
    g, again = example(), from_json(to_json(example()))
    assert again.name == g.name
    assert again.blobs == g.blobs
    assert again.outputs == ("x",)
    assert again.ops["copy"].on == ("copy_in", 1)
    assert again.ops["copy"].ahead == 2
    assert not again.ops["read"].ordered
    assert again.before("copy") == ("read",)
    assert analyse(again).critical == 3.0
    assert json.loads(to_json(g))["operations"][0]["cost"] == 2.0


def test_a_chrome_trace_by_hand():
    line = Timeline(
        [Event("read", 0, "cpu", 1, 10.0, 10.5, 11.0), Event("copy", 0, "copy_in", 0, 11.0, 11.0, 11.25)]
    )
    trace = chrome_trace(line)["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert rows == {(0, 0): "copy_in 0", (1, 1): "cpu 1"}
    read, copy = [e for e in trace if e["ph"] == "X"]
    assert read.pop("args") == {"item": 0, "waited_us": 5e5}
    assert read == {"ph": "X", "name": "read", "cat": "cpu", "pid": 1, "tid": 1, "ts": 5e5, "dur": 5e5}
    assert (copy["ts"], copy["dur"], copy["args"]["waited_us"]) == (1e6, 2.5e5, 0.0)


def test_saved_files(tmp_path):
    assert save(tmp_path / "g.dot", example()).read_text() == dot(example())
    assert from_json(save(tmp_path / "g.json", example()).read_text()).name == "input"
    assert len(json.loads(save(tmp_path / "t.json", simulate(example())).read_text())["traceEvents"]) == 6
    with pytest.raises(ValueError, match=r"g.png: a graph is written as .dot or .json"):
        save(tmp_path / "g.png", example())
    with pytest.raises(ValueError, match=r"t.dot: a timeline is written as .json \(a Chrome trace\)"):
        save(tmp_path / "t.dot", simulate(example()))


def test_what_a_timeline_adds_up_to():
    line = Timeline(
        [
            Event("b", 1, "cpu", 1, 1.0, 2.0, 4.0),
            Event("a", 0, "cpu", 0, 1.0, 1.0, 2.0),
            Event("a", 1, "cpu", 0, 2.0, 2.5, 5.0),
            Event("c", 0, "network", 0, 4.0, 4.0, 5.0),
        ]
    )
    assert line.seconds == 4.0
    assert [e.op for e in line] == ["a", "b", "a", "c"]
    assert line.busy() == {"cpu": 5.5 / 8, "network": 0.25}
    assert line.waited("a") == 0.5
    assert line.costs() == {"a": 1.75, "b": 2.0, "c": 1.0}
    assert line.lanes == [("cpu", 0), ("cpu", 1), ("network", 0)]
    assert Timeline([]).seconds == 0.0
