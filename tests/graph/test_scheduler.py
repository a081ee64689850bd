import collections
import gc
import random
import signal
import threading
import time
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnnkit.graph import Cancelled, Graph, GraphError, OperationError, Scheduler, evaluate
from tests.graph.build import random_graph

THREADS = {"cpu": 3, "compute": 2}


@pytest.fixture(scope="module")
def scheduler():
    with Scheduler(THREADS, name="tested") as made:
        yield made


def threads_named(name: str) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(name)]


def check_order(graph: Graph, order: list[int]) -> None:
    """Each operation once, none before those whose outputs it reads."""
    assert sorted(order) == list(range(len(graph)))
    place = {f"op{i}": at for at, i in enumerate(order)}
    for name in graph.ops:
        assert all(place[b] < place[name] for b in graph.before(name)), name


@settings(
    max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)
@given(st.integers(0, 999).map(lambda r: 1 + r * r // 2000), st.integers(0, 10**9))
def test_random_graphs_run_each_operation_once_and_in_order(scheduler, n, seed):
    started, ended = [], []
    graph = random_graph(n, seed, watch=started.append)
    handle = scheduler.start(graph, {"x": seed})
    values = handle.wait(timeout=60)
    check_order(graph, started)
    line = handle.timeline
    assert collections.Counter(e.op for e in line) == dict.fromkeys(graph.ops, 1)
    ended = {e.op: e for e in line}
    for name in graph.ops:
        assert ended[name].start >= max((ended[b].end for b in graph.before(name)), default=0.0)
    assert values == evaluate(graph, {"x": seed})


def test_errors_at_random_places_name_the_operation_and_stop_the_run(scheduler):
    draw = random.Random(1)
    for seed in range(150):
        n = draw.randint(1, 120)
        breaks = draw.randrange(n)
        started: list[int] = []
        graph = random_graph(n, seed, breaks, started.append)
        with pytest.raises(OperationError) as error:
            scheduler.run(graph, {"x": 0}, timeout=60)
        assert error.value.operation == f"op{breaks}"
        assert isinstance(error.value.__cause__, ArithmeticError)
        assert (
            f"operation 'op{breaks}' (item 0, on {graph.ops[f'op{breaks}'].on}) failed: ArithmeticError"
            in str(error.value)
        )
        behind = {breaks}
        for i in range(n):
            if any(int(b[2:]) in behind for b in graph.before(f"op{i}")):
                behind.add(i)
        assert not (behind - {breaks}) & set(started)
    assert len(threads_named("tested")) == len(scheduler._state.threads)


def test_cancelling_at_random_places():
    draw = random.Random(2)
    with Scheduler(THREADS, name="cancelled") as scheduler:
        for seed in range(100):
            n = draw.randint(2, 120)
            at, handles = draw.randrange(n), []
            began = threading.Event()

            def watch(i, at=at, handles=handles, began=began):
                if i == at:
                    began.wait(10)
                    handles[0].cancel()

            started: list[int] = []
            graph = random_graph(n, seed, watch=lambda i, w=watch, s=started: (s.append(i), w(i)))
            handles.append(scheduler.start(graph, {"x": 0}))
            began.set()
            with pytest.raises(Cancelled, match=f"^{graph.name}: cancelled$"):
                handles[0].wait(timeout=60)
            assert at in started
            assert not any(int(b[2:]) in started for b in graph.after(f"op{at}"))
        assert scheduler.run(random_graph(50, 7), {"x": 1}) == evaluate(random_graph(50, 7), {"x": 1})
    assert threads_named("cancelled") == []


def test_threads_are_made_once_and_end_with_the_scheduler():
    graph, seen = Graph("threads"), set()
    for i in range(20):
        graph.add(f"a{i}", lambda: seen.add(threading.current_thread()), (), ())
    with Scheduler({"cpu": 2}, name="once") as scheduler:
        for _ in range(30):
            scheduler.run(graph)
        assert len(threads_named("once")) == 2
        assert seen <= set(threads_named("once"))
    assert threads_named("once") == []
    with pytest.raises(RuntimeError, match="the scheduler is closed; make another"):
        scheduler.run(graph)
    scheduler.close()


def test_a_dropped_scheduler_leaves_no_thread():
    scheduler = Scheduler({"cpu": 2}, name="dropped")
    scheduler.run(random_graph(20, 3), {"x": 0})
    made = threads_named("dropped")
    assert made
    del scheduler
    gc.collect()
    for thread in made:
        thread.join(10)
    assert threads_named("dropped") == []


def test_a_device_and_the_pool_work_at_once(scheduler):
    """Two operations that each wait for the other to have begun: they end only if they run at once."""
    both = threading.Barrier(2, timeout=20)
    graph = Graph("at once")
    graph.add("copy", both.wait, on="copy_in")
    graph.add("read", both.wait, on="cpu")
    assert sorted(scheduler.run(graph, timeout=30).values()) == [0, 1]
    pool = Graph("in the pool")
    three = threading.Barrier(3, timeout=20)
    for i in range(3):
        pool.add(f"read {i}", three.wait, on="cpu")
    assert sorted(scheduler.run(pool, timeout=30).values()) == [0, 1, 2]


def test_the_network_runs_one_at_a_time_in_the_graphs_order(scheduler):
    """Whatever order the gradients come in, exchanges keep the order that every machine agrees on."""
    for seed in range(20):
        draw, order, inside = random.Random(seed), [], []
        graph = Graph("exchange")
        for i in range(8):
            pause = draw.uniform(0, 2e-3)
            graph.add(f"gradient {i}", lambda pause=pause: time.sleep(pause), on="cpu")

            def exchange(gradient, i=i, order=order, inside=inside):
                inside.append(i)
                assert len(inside) == 1
                order.append(i)
                inside.remove(i)

            graph.add(f"exchange {i}", exchange, f"gradient {i}", on="network")
        scheduler.run(graph, timeout=30)
        assert order == list(range(8))


def test_the_most_urgent_operation_goes_first():
    order: list[str] = []
    graph = Graph("urgent", inputs=["x"])
    graph.add("gate", lambda x: x, "x", cost=1)
    for name, cost in (("short", 1), ("long", 5), ("middle", 3)):
        graph.add(name, lambda _, name=name: order.append(name), "gate", cost=cost)
    graph.add("end", lambda *_: order.append("end"), ["short", "long"], cost=1)
    with Scheduler({"cpu": 1}) as one:
        one.run(graph, {"x": 0})
    assert order == ["long", "middle", "short", "end"]


def test_blobs_are_let_go_after_their_last_reader(scheduler):
    class Array:
        pass

    alive: weakref.WeakSet[Array] = weakref.WeakSet()
    most = []

    def make(*_):
        made = Array()
        alive.add(made)
        most.append(len(alive))
        return made

    graph = Graph("chain", inputs=["x"])
    blob = "x"
    for i in range(50):
        blob = graph.add(f"a{i}", make, blob)
    handle = scheduler.start(graph, {"x": 0})
    out = handle.wait(timeout=30)
    assert max(most) <= 3
    del out, handle
    gc.collect()
    assert len(alive) == 0


def test_a_time_out_names_what_runs():
    go = threading.Event()
    graph = Graph("slow")
    graph.add("stuck", lambda: go.wait(20), (), "a", on="copy_in")
    graph.add("behind", lambda a: a, "a")
    with Scheduler() as scheduler:
        with pytest.raises(TimeoutError) as error:
            scheduler.run(graph, timeout=0.3)
        assert str(error.value) == (
            "slow: item 0 not done within 0.3 s: running 'stuck' on copy_in; 2 of 2 operations not done"
        )
        go.set()


def test_closing_over_a_stuck_operation_names_it():
    go = threading.Event()
    graph = Graph("stuck")
    graph.add("reader", lambda: go.wait(20))
    scheduler = Scheduler()
    handle = scheduler.start(graph)
    while not handle._run.running():
        time.sleep(1e-3)
    with pytest.raises(
        RuntimeError, match=r"closed, but operation 'reader' on cpu did not end within 0.05 s"
    ):
        scheduler.close(timeout=0.05)
    go.set()
    with pytest.raises(Cancelled, match="stuck: the scheduler was closed"):
        handle.wait()
    scheduler.close()


def test_an_error_waits_for_what_runs_beside_it(scheduler):
    ended = []
    both = threading.Barrier(2, timeout=20)

    def slow():
        both.wait()
        time.sleep(0.05)
        ended.append("slow")

    def fails():
        both.wait()
        raise OSError("disk gone")

    graph = Graph("beside")
    graph.add("slow", slow, on="copy_in")
    graph.add("fails", fails, on="cpu")
    with pytest.raises(OperationError, match=r"operation 'fails' .* failed: OSError: disk gone"):
        scheduler.run(graph, timeout=30)
    assert ended == ["slow"]


def test_an_interrupt_ends_the_run(scheduler):
    go, ran = threading.Event(), []

    def press_stop():
        time.sleep(0.3)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        go.wait(20)

    graph = Graph("interrupted")
    graph.add("slow", press_stop)
    graph.add("behind", ran.append, "slow")
    handle = scheduler.start(graph)
    with pytest.raises(KeyboardInterrupt):
        handle.wait(timeout=30)
    go.set()
    with pytest.raises(Cancelled, match=r"^interrupted: interrupted$"):
        handle.wait(timeout=30)
    assert ran == []
    assert handle.done


def test_an_operation_may_exit_and_is_still_an_error(scheduler):
    def leave():
        raise SystemExit(3)

    graph = Graph("exit")
    graph.add("leaves", leave)
    with pytest.raises(OperationError, match=r"operation 'leaves' .* failed: SystemExit: 3"):
        scheduler.run(graph, timeout=30)


def test_waiting_from_inside_is_refused_instead_of_hanging(scheduler):
    inner = Graph("inner")
    inner.add("a", lambda: 1)
    outer = Graph("outer")
    outer.add("nested", lambda: scheduler.run(inner), on="compute")
    with pytest.raises(OperationError, match="waits for a run on its own scheduler"):
        scheduler.run(outer, timeout=30)


def test_many_runs_at_once_from_many_threads(scheduler):
    wrong = []

    def work(seed):
        graph = random_graph(60, seed)
        for x in range(10):
            if scheduler.run(graph, {"x": x}, timeout=60) != evaluate(graph, {"x": x}):
                wrong.append((seed, x))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_graph_that_grows_between_runs(scheduler):
    graph = Graph(inputs=["x"])
    graph.add("a", lambda x: x + 1, "x")
    assert scheduler.run(graph, {"x": 1}) == {"a": 2}
    graph.add("b", lambda a: a * 10, "a")
    assert scheduler.run(graph, {"x": 1}) == {"b": 20}


def test_the_result_stays_after_wait(scheduler):
    graph = Graph(inputs=["x"])
    graph.add("a", lambda x: x + 1, "x")
    handle = scheduler.start(graph, {"x": 1})
    assert handle.wait() == {"a": 2}
    assert handle.done
    handle.cancel()
    assert handle.wait() == {"a": 2}


def test_wrong_settings():
    with pytest.raises(ValueError, match="threads\\['cpu'\\] must be at least 1, got 0"):
        Scheduler({"cpu": 0})
    with pytest.raises(ValueError, match="unknown resource 'disk'"):
        Scheduler({"disk": 1})
    with Scheduler() as scheduler:
        graph = Graph("g", inputs=["x"])
        graph.add("a", None, "x")
        with pytest.raises(
            GraphError, match="operation 'a' has no function; the graph can be looked at, not run"
        ):
            scheduler.run(graph, {"x": 1})
