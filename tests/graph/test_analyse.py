import itertools
import random

import pytest

from cnnkit.graph import Graph, analyse, simulate
from tests.graph.build import random_graph


def ladder() -> Graph:
    """Two chains of three from one input, then a sum; costs by hand."""
    g = Graph("ladder", inputs=["x"])
    for side, costs in (("a", (1, 2, 3)), ("b", (4, 1, 2))):
        blob = "x"
        for i, cost in enumerate(costs):
            blob = g.add(f"{side}{i}", None, blob, cost=cost, on="compute" if side == "a" else "copy_in")
    g.add("sum", None, ["a2", "b2"], cost=1)
    return g


def test_levels_path_and_speedup_by_hand():
    found = analyse(ladder())
    assert found.levels == (("a0", "b0"), ("a1", "b1"), ("a2", "b2"), ("sum",))
    assert found.critical_path == ("b0", "b1", "b2", "sum")
    assert found.critical == 8
    assert found.work == 14
    assert found.speedup == 14 / 8
    assert found.width == 2
    assert found.by_resource == {"compute": 6, "copy_in": 7, "cpu": 1}
    assert found.bound() == 8
    assert found.together("a0", "b2")
    assert not found.together("a0", "sum")
    assert not found.together("a0", "a0")
    assert str(found) == (
        "7 operations on 4 levels, at most 2 at once; work 14, critical path 8 (b0 → b1 → b2 → sum), "
        "speed-up at most 1.75"
    )


def test_costs_given_move_the_critical_path():
    costs = dict.fromkeys(ladder().ops, 1.0) | {"a1": 10.0}
    found = analyse(ladder(), costs)
    assert found.critical_path == ("a0", "a1", "a2", "sum")
    assert found.critical == 13


def test_without_costs_each_operation_counts_one():
    g = Graph(inputs=["x"])
    g.add("a", None, "x")
    g.add("b", None, "a")
    assert analyse(g).critical == 2


def test_costs_of_some_operations_only_are_an_error():
    g = Graph("half", inputs=["x"])
    g.add("a", None, "x", cost=1)
    g.add("b", None, "a")
    with pytest.raises(
        ValueError, match="half: costs are known for 1 of 2 operations, not for 'b'; give all"
    ):
        analyse(g)


def test_one_resource_bounds_the_time_from_below():
    g = Graph(inputs=["x"])
    for i in range(6):
        g.add(f"a{i}", None, "x", cost=1)
    assert analyse(g).bound() == 6
    assert analyse(g).bound({"cpu": 2}) == 3
    assert analyse(g).bound({"cpu": 99}) == 1


def test_width_is_the_largest_antichain():
    """Against trying all subsets, on graphs small enough."""
    for seed in range(60):
        found = analyse(random_graph(random.Random(seed).randint(1, 10), seed))
        widest = max(
            k
            for k in range(1, len(found.order) + 1)
            for some in itertools.combinations(found.order, k)
            if all(found.together(a, b) for a, b in itertools.combinations(some, 2))
        )
        assert found.width == widest, seed


def test_width_may_be_wider_than_any_level():
    # Levels count from the start only: "short" stands beside both ends of the long path.
    g = Graph(inputs=["x"])
    g.add("root", None, "x")
    g.add("short", None, "root")
    g.add("long1", None, "root")
    g.add("long2", None, "long1")
    g.add("fan a", None, "long2")
    g.add("fan b", None, "long2")
    found = analyse(g)
    assert max(map(len, found.levels)) == 2
    assert found.width == 3


def test_simulated_times_by_hand():
    times = {e.op: (e.start, e.end) for e in simulate(ladder())}
    assert times["a0"] == (0, 1)
    assert times["b0"] == (0, 4)
    assert times["a2"] == (3, 6)
    assert times["sum"] == (7, 8)
    assert simulate(ladder()).seconds == 8


def test_a_simulated_run_keeps_the_rules():
    for seed in range(40):
        graph = random_graph(60, seed)
        costs = {name: random.Random(name).uniform(0, 1) for name in graph.ops}
        threads = {"cpu": 2}
        line = simulate(graph, costs, threads)
        at = {e.op: e for e in line}
        assert set(at) == set(graph.ops)
        for name in graph.ops:
            assert at[name].start >= max((at[b].end for b in graph.before(name)), default=0.0)
        for lane in line.lanes:
            mine = [e for e in line if (e.resource, e.thread) == lane]
            assert all(a.end <= b.start for a, b in itertools.pairwise(mine))
            assert lane[1] < threads.get(lane[0], 1)
        found = analyse(graph, costs)
        assert found.bound(threads) - 1e-9 <= line.seconds <= found.work + 1e-9


def test_an_empty_graph():
    found = analyse(Graph())
    assert (found.width, found.critical, found.speedup) == (0, 0.0, 1.0)
    assert simulate(Graph()).seconds == 0
