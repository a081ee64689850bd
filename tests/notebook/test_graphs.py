import itertools

import pytest
from matplotlib.collections import PolyCollection

from cnnkit.graph import Event, Graph, Timeline, simulate
from cnnkit.notebook import graphs, layered


def example() -> Graph:
    g = Graph("input", inputs=["order"])
    g.add("read", None, "order", cost=2e-3)
    g.add("copy", None, "read", on="copy_in", cost=1e-3)
    g.add("step", None, "copy", on="compute", cost=4e-3)
    g.add("record", None, ["step", "read"], cost=1e-3)
    return g


def texts(picture):
    return [t.get_text() for ax in picture.axes for t in ax.texts if t.get_text()]


def test_a_gantt_chart_has_a_bar_an_operation_at_its_time():
    picture = graphs.gantt(simulate(example()))
    (ax,) = picture.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["compute", "copy_in", "cpu"]
    assert ax.get_xlabel() == "time (ms)"
    bars = [
        path.get_extents() for c in ax.collections if isinstance(c, PolyCollection) for path in c.get_paths()
    ]
    spans = sorted((round(b.x0, 6), round(b.x1, 6), round((b.y0 + b.y1) / 2)) for b in bars)
    assert spans == [(0, 2, 2), (2, 3, 1), (3, 7, 0), (7, 8, 2)]
    assert [t.get_text() for t in picture.legends[0].get_texts()] == ["read", "copy", "step", "record"]
    assert "step" in texts(picture)


def test_a_gantt_chart_of_many_operations_is_coloured_by_resource():
    line = Timeline([Event(f"op{i}", i, "cpu" if i % 2 else "network", 0, i, i, i + 1.0) for i in range(20)])
    picture = graphs.gantt(line)
    assert picture.legends == []
    colours = {tuple(c.get_facecolor()[0][:3]) for c in picture.axes[0].collections}
    assert len(colours) == 2
    assert len(picture.png()) > 1000


def test_an_empty_timeline_is_refused():
    with pytest.raises(ValueError, match=r"the timeline is empty; run the graph first"):
        graphs.gantt(Timeline([]))


def test_a_drawing_has_a_box_an_operation_and_a_line_an_edge():
    picture = graphs.draw(example())
    assert sorted(t.split("\n")[0] for t in texts(picture)) == ["copy", "read", "record", "step"]
    assert "4 ms" in " ".join(texts(picture))
    lines = picture.axes[0].lines
    assert len(lines) == 4
    assert sum(line.get_linewidth() > 1 for line in lines) == 3
    with_blobs = graphs.draw(example(), blobs=True)
    assert len(texts(with_blobs)) == 4 + 5
    assert len(with_blobs.axes[0].lines) == 5 + 4
    assert len(with_blobs.png()) > 1000


def test_too_large_a_graph_is_refused():
    g = Graph("large", inputs=["x"])
    for i in range(401):
        g.add(f"a{i}", None, "x")
    with pytest.raises(ValueError, match=r"large has 401 operations; a figure shows at most 400 nodes"):
        graphs.draw(g)


def test_layers_do_not_overlap_and_point_down():
    nodes = {i: 1.0 + i % 3 for i in range(12)}
    edges = [(i, j) for i, j in itertools.combinations(range(12), 2) if (i * j + i + j) % 5 == 0]
    places, lines, (width, _) = layered.layers(nodes, edges)
    assert all(places[a].y < places[b].y for a, b in edges)
    for y in {p.y for p in places.values()}:
        row = sorted((p.x - nodes[n] / 2, p.x + nodes[n] / 2) for n, p in places.items() if p.y == y)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(row))
        assert row[0][0] >= -1e-9
        assert row[-1][1] <= width + 1e-9
    assert all(ys == sorted(ys) for _, _, ys in lines)


def test_layers_untangle_a_crossing():
    places, _, _ = layered.layers(dict.fromkeys("abcd", 1.0), [("a", "d"), ("b", "c")])
    assert (places["a"].x < places["b"].x) == (places["d"].x < places["c"].x)
