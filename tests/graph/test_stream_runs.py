import random
import threading
import time

import pytest

from cnnkit.graph import Cancelled, Graph, GraphError, OperationError, Scheduler, evaluate
from tests.graph.build import random_graph


@pytest.fixture(scope="module")
def scheduler():
    with Scheduler({"cpu": 3}) as made:
        yield made


def pipeline(log=None, ordered=True) -> Graph:
    graph = Graph("pipeline", inputs=["i"])
    note = (lambda *a: None) if log is None else (lambda *a: log.append(a))
    graph.add("read", lambda i: (note("read", i), i * 10)[1], "i", ordered=ordered)
    graph.add("copy", lambda r: (note("copy", r // 10), r + 1)[1], "read", on="copy_in", wait=False)
    graph.add("step", lambda c: (note("step", c // 10), c * 2)[1], "copy", on="compute", wait=False)
    return graph


def test_a_stream_gives_each_items_outputs_in_order(scheduler):
    for depth in (1, 2, 7):
        made = [out["step"] for out in scheduler.stream(pipeline(), range(50), depth=depth)]
        assert made == [(10 * i + 1) * 2 for i in range(50)]


def test_random_graphs_in_a_stream(scheduler):
    for seed in range(60):
        graph = random_graph(random.Random(seed).randint(1, 60), seed)
        got = list(scheduler.stream(graph, range(6), depth=3, timeout=60))
        assert got == [evaluate(graph, {"x": x}) for x in range(6)]


def test_ordered_operations_take_the_items_in_order(scheduler):
    """Reads that end out of order, copies and steps in order all the same."""
    log: list[tuple] = []
    graph = pipeline(log, ordered=False)
    slow = graph.ops["read"].run

    def read(i):
        time.sleep(2e-3 if i % 3 == 0 else 0)
        return slow(i)

    graph = Graph("pipeline", inputs=["i"])
    old = pipeline(log)
    graph.add("read", read, "i", ordered=False)
    for op in list(old.ops.values())[1:]:
        graph.add(op.name, op.run, op.inputs, op.outputs, on=op.on, wait=False)
    list(scheduler.stream(graph, range(30), depth=6))
    assert [i for what, i in log if what == "read"] != list(range(30))
    assert [i for what, i in log if what == "copy"] == list(range(30))
    assert [i for what, i in log if what == "step"] == list(range(30))


def test_operations_of_different_items_run_at_once(scheduler):
    """The read of the next item begins while this item's step still runs, else neither would end."""
    begun = [threading.Event() for _ in range(4)]
    graph = Graph("overlap", inputs=["i"])
    graph.add("read", lambda i: (begun[i].set(), i)[1], "i")
    graph.add("step", lambda i: i == 3 or begun[i + 1].wait(20), "read", on="compute")
    assert all(out["step"] for out in scheduler.stream(graph, range(4), depth=2, timeout=30))


def test_never_more_than_depth_items_in_flight(scheduler):
    for depth in (1, 3):
        alive, most, lock = [0], [0], threading.Lock()

        def read(i, alive=alive, most=most, lock=lock):
            with lock:
                alive[0] += 1
                most[0] = max(most[0], alive[0])
            return i

        graph = Graph("bounded", inputs=["i"])
        graph.add("read", read, "i", ordered=False)
        taken = 0
        for _ in scheduler.stream(graph, range(40), depth=depth):
            with lock:
                alive[0] -= 1
            time.sleep(5e-4)
            taken += 1
        assert taken == 40
        # One more than depth: the consumer's own item counts as taken only when it is handed over.
        assert depth <= most[0] <= depth + 1


def test_depth_0_begins_an_item_only_when_it_is_asked_for(scheduler):
    log: list[tuple] = []
    for taken, _ in enumerate(scheduler.stream(pipeline(log), range(6), depth=0), 1):
        time.sleep(2e-3)
        assert [i for what, i in log if what == "step"] == list(range(taken))
        assert len(log) == 3 * taken


def test_ahead_holds_an_operation_back(scheduler):
    copied, read, waited = [], [], []
    graph = Graph("ahead", inputs=["i"])
    graph.add("read", lambda i: (read.append(i), i)[1], "i")
    graph.add("copy", lambda i: (copied.append(i), i)[1], "read", on="copy_in", ahead=2)
    for taken, _ in enumerate(scheduler.stream(graph, range(20), depth=6), 1):
        while len(read) < min(20, taken + 6):
            time.sleep(1e-4)
        waited.append(len(copied) - taken)
    assert len(copied) == 20
    assert max(waited) <= 2


def test_a_carried_value_goes_from_item_to_item(scheduler):
    graph = Graph("training", inputs=["x", "weights"])
    graph.add("prepare", lambda x: x * 2, "x", ordered=False)
    graph.add("step", lambda w, x: w + x, ["weights", "prepare"], "new", on="compute", wait=False)
    made = scheduler.stream(graph, range(10), depth=4, carry={"weights": "new"}, first={"weights": 100})
    want, w = [], 100
    for x in range(10):
        w += 2 * x
        want.append(w)
    graph.outputs = ["new"]
    assert [out["new"] for out in made] == want


def test_an_exchange_one_round_late_overlaps_the_next_round(scheduler):
    """delay=1: round r's steps run beside the exchange of round r-1, which each waits for here."""
    met = threading.Barrier(2, timeout=20)
    rounds = 5

    def steps(weights, r):
        if r > 0:
            met.wait()
        return weights + 1

    def exchange(sent, r):
        if r > 0:
            met.wait()
        return sent * 10

    graph = Graph("delayed", inputs=["r", "weights", "sent"])
    graph.add("steps", steps, ["weights", "r"], "here", on="compute", wait=False)
    graph.add("exchange", exchange, ["sent", "r"], "average", on="network")
    graph.add(
        "merge", lambda here, average: here + average, ["here", "average"], "merged", on="compute", wait=False
    )
    stream = scheduler.stream(
        graph,
        ({"r": r} for r in range(rounds)),
        depth=2,
        carry={"weights": "merged", "sent": "here"},
        first={"weights": 0, "sent": 0},
        timeout=30,
    )
    weights, sent, want = 0, 0, []
    for _ in range(rounds):
        here = weights + 1
        weights, sent = here + sent * 10, here
        want.append(weights)
    assert [out["merged"] for out in stream] == want


def test_a_carried_input_that_no_operation_writes(scheduler):
    graph = Graph("previous", inputs=["x", "last"])
    graph.add("change", lambda x, last: x - last, ["x", "last"])
    made = scheduler.stream(
        graph, [{"x": v} for v in (3, 7, 20)], depth=3, carry={"last": "x"}, first={"last": 1}
    )
    assert [out["change"] for out in made] == [2, 4, 13]


def test_an_error_names_operation_and_item_after_the_items_before_it(scheduler):
    graph = Graph("breaks", inputs=["i"])
    graph.add("read", lambda i: 1 // (5 - i), "i")
    stream, got = scheduler.stream(graph, range(9), depth=3, timeout=30), []
    with pytest.raises(
        OperationError, match="breaks: operation 'read' \\(item 5, on cpu\\) failed: ZeroDivisionError"
    ):
        got.extend(out["read"] for out in stream)
    assert got == [1 // (5 - i) for i in range(len(got))]
    with pytest.raises(OperationError):
        next(stream)


def test_a_source_that_breaks_is_raised_after_its_items(scheduler):
    def items():
        yield from range(3)
        raise OSError("disk gone")

    stream, got = scheduler.stream(pipeline(), items(), depth=2), []
    with pytest.raises(OSError, match="disk gone"):
        got.extend(out["step"] for out in stream)
    assert got == [2, 22, 42]


def test_a_stream_left_early_lets_go(scheduler):
    log: list[tuple] = []
    with scheduler.stream(pipeline(log), range(1000), depth=3) as stream:
        assert next(stream) == {"step": 2}
    assert list(stream) == []
    while stream._run.active:
        time.sleep(1e-3)
    began = len(log)
    time.sleep(0.01)
    assert len(log) == began < 30


def test_a_slow_item_times_out(scheduler):
    go = threading.Event()
    graph = Graph("slow", inputs=["i"])
    graph.add("read", lambda i: i < 2 or go.wait(20), "i")
    stream = scheduler.stream(graph, range(5), depth=1, timeout=0.5)
    assert [next(stream)["read"] for _ in range(2)] == [True, True]
    with pytest.raises(TimeoutError, match=r"slow: item 2 not done within 0.5 s: running 'read' on cpu"):
        next(stream)
    go.set()


def test_closing_the_scheduler_ends_a_stream_with_an_error():
    with Scheduler({"cpu": 1}) as scheduler:
        stream = scheduler.stream(pipeline(), range(100), depth=1)
        next(stream)
    with pytest.raises(Cancelled, match="pipeline: the scheduler was closed"):
        list(stream)


def test_the_timeline_keeps_the_latest(scheduler):
    stream = scheduler.stream(pipeline(), range(20), depth=2, history=6)
    assert len(list(stream)) == 20
    assert {e.item for e in stream.timeline} <= {17, 18, 19}
    assert len(stream.timeline) == 6


def test_wrong_use_of_a_stream(scheduler):
    graph = Graph("g", inputs=["x", "w"])
    graph.add("a", lambda x, w: x + w, ["x", "w"])
    with pytest.raises(ValueError, match="depth must be at least 0 items in flight, got -1"):
        scheduler.stream(graph, [], depth=-1)
    with pytest.raises(
        GraphError, match="first must give a value for each carried input, \\['w'\\], got \\[\\]"
    ):
        scheduler.stream(graph, [], carry={"w": "a"})
    with pytest.raises(GraphError, match="carry 'v' ← 'a': 'v' is no input"):
        scheduler.stream(graph, [], carry={"v": "a"}, first={"v": 0})
    with pytest.raises(GraphError, match="carry 'w' ← 'b': there is no blob 'b'"):
        scheduler.stream(graph, [], carry={"w": "b"}, first={"w": 0})
    with pytest.raises(GraphError, match="g: an item must be a mapping of x, w, got int"):
        next(scheduler.stream(graph, [1]))
    with pytest.raises(GraphError, match="'w' must be fed"):
        next(scheduler.stream(graph, [{"x": 1}]))
