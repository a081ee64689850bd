"""The scheduler: an operation fires when its inputs are ready, on its resource's queue and threads."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cnnkit.graph.bigraph import Graph, GraphError, resource
from cnnkit.graph.cost import check_feeds
from cnnkit.graph.plan import plan_of
from cnnkit.graph.run import Cancelled, OperationError, Run, State
from cnnkit.graph.timeline import Event, Timeline

__all__ = ["Cancelled", "Handle", "OperationError", "Scheduler", "Stream"]

# How long an error waits for the operations that run beside it before it is raised over them.
GRACE = 5.0

_ALL: "weakref.WeakSet[Scheduler]" = weakref.WeakSet()


class Scheduler:
    """Runs graphs on one task queue and one pool of threads for each resource, made once for many runs.

    Among the ready operations of a resource the most urgent goes first: the earliest item's, then the one
    with the longest way to the graph's end. Operations on the network run one at a time, in the graph's
    order on every machine, because collectives must.

    Args:
        threads: of each resource, e.g. ``{"cpu": 4}``; by default one a core for ``"cpu"``, else 1.
        name: of the threads.

    The thesis's scheduler: thread pools and task queues, one per kind of hardware, and events
    between the queues.

    >>> g = Graph("example", inputs=["x"])
    >>> _ = g.add("double", lambda x: 2 * x, "x", "y"), g.add("minus", lambda y: -y, "y", "z")
    >>> with Scheduler({"cpu": 2}) as scheduler:
    ...     print(scheduler.run(g, {"x": 3}))
    ...     print([made["z"] for made in scheduler.stream(g, [1, 2, 3], depth=2)])
    {'z': -6}
    [-2, -4, -6]
    """

    def __init__(self, threads: Mapping[str, int] | None = None, name: str = "cnnkit"):
        for where, n in (threads or {}).items():
            resource(where)
            if n < 1:
                raise ValueError(f"threads[{where!r}] must be at least 1, got {n}")
        self._threads = dict(threads or {})
        self._name = name
        self._state = State()
        # Its threads end with a scheduler that is dropped, too.
        weakref.finalize(self, _abandon, self._state).atexit = False
        _ALL.add(self)

    def run(
        self, graph: Graph, feeds: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Runs a graph once and returns its outputs; ``start(graph, feeds).wait(timeout)``."""
        return self.start(graph, feeds).wait(timeout)

    def start(self, graph: Graph, feeds: Mapping[str, Any] | None = None) -> "Handle":
        """Begins a run and returns at once.

        Args:
            graph: the graph.
            feeds: values of its inputs.

        Raises:
            GraphError: the graph cannot be run, or an input is missing; by name.
        """
        given = check_feeds(graph, feeds or {})
        run = self._begin(graph, {}, None)
        with self._state.lock:
            run.admit(0, given)
        return Handle(run)

    def stream(
        self,
        graph: Graph,
        items: Iterable[Any],
        *,
        depth: int = 2,
        carry: Mapping[str, str] | None = None,
        first: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        history: int = 10_000,
    ) -> "Stream":
        """Runs a graph over a stream of items, several at once; iterate over it for each item's outputs, in order.

        At most ``depth`` items are between their admission and the consumer, so that memory is bounded
        however fast the operations are. An ordered operation takes the items in order; others as they come.

        Args:
            graph: the graph.
            items: feeds of each item; where the graph has one input to feed, its value alone will do. They
                are drawn by whoever iterates, as room comes free.
            depth: items in flight at most; 0 begins an item only when it is asked for, so that nothing
                runs ahead.
            carry: input -> blob: the input takes the value that the blob had for the item before.
            first: values of the carried inputs for the first item.
            timeout: seconds that one item may keep the consumer waiting.
            history: how many events the timeline keeps, the latest.
        """
        return Stream(self, graph, items, depth, dict(carry or {}), dict(first or {}), timeout, history)

    def close(self, timeout: float = GRACE) -> None:
        """Cancels what still runs and ends the threads.

        Raises:
            RuntimeError: an operation has not ended within timeout seconds; it is named.
        """
        stuck = _close(self._state, timeout)
        if stuck:
            raise RuntimeError(
                f"closed, but {', '.join(stuck)} did not end within {timeout:g} s; its thread ends with it"
            )

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _begin(self, graph: Graph, carry: dict[str, str], history: int | None) -> Run:
        plan = plan_of(graph, carry)
        pools = {where: self._pool(where) for where in set(plan.where)}
        with self._state.lock:
            if self._state.closed:
                raise RuntimeError("the scheduler is closed; make another")
            return Run(self._state, plan, [pools[where] for where in plan.where], history)

    def _pool(self, where: str):
        default = cores() if where.startswith("cpu") else 1
        return self._state.pool(where, self._threads.get(where, default), self._name)


class Handle:
    """A run that has begun."""

    def __init__(self, run: Run):
        self._run = run
        self._outputs: dict[str, Any] | None = None

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The outputs, when all operations are done.

        Raises:
            OperationError: an operation failed; the run has stopped.
            TimeoutError: it took longer than timeout seconds; the run is cancelled, the text says what ran.
            Cancelled: `cancel` was called, or the scheduler closed.
        """
        if self._outputs is None:
            self._outputs = _await(self._run, 0, timeout)
            with self._run.state.lock:
                self._run.retire(0)
                self._run.last = None
        return self._outputs

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or not."""
        with self._run.state.lock:
            stopped = self._run.stopped is not None and self._run.active == 0
            return stopped or 0 not in self._run.items or self._run.items[0].todo == 0

    def cancel(self) -> None:
        """Ends the run: operations that run end on their own, no further one starts."""
        _cancel(self._run)

    @property
    def timeline(self) -> Timeline:
        """Every operation that ran, so far."""
        return _timeline(self._run)


class Stream(Iterator[dict[str, Any]]):
    """A graph running over a stream of items; an iterator of each item's outputs, in order."""

    def __init__(self, scheduler: Scheduler, graph: Graph, items, depth, carry, first, timeout, history):
        if depth < 0:
            raise ValueError(f"depth must be at least 0 items in flight, got {depth}")
        if set(first) != set(carry):
            raise GraphError(
                f"{graph.name}: first must give a value for each carried input, {sorted(carry)}, got {sorted(first)}"
            )
        self._run = scheduler._begin(graph, carry, history)
        self._graph, self._depth, self._timeout = graph, depth, timeout
        self._first, self._fed = first, [name for name in graph.inputs if name not in carry]
        self._items: Iterator[Any] | None = iter(items)
        self._admitted = self._taken = 0
        self._broken: BaseException | None = None

    def __next__(self) -> dict[str, Any]:
        self._fill(max(self._depth, 1))
        if self._taken == self._admitted:
            # Not a quiet end where the scheduler was closed between two items.
            problem = self._broken or (None if self._items is None else self._run.stopped)
            raise problem or StopIteration
        made = _await(self._run, self._taken, self._timeout)
        with self._run.state.lock:
            self._run.retire(self._taken)
        self._taken += 1
        # Before the consumer goes to work on this one, the next is under way.
        self._fill(self._depth)
        return made

    def _fill(self, depth: int) -> None:
        while self._items is not None and self._admitted - self._taken < depth:
            try:
                given = self._feeds(next(self._items))
            except StopIteration:
                self._items = None
                return
            except Exception as error:
                # The items before it are handed out first.
                self._items, self._broken = None, error
                return
            with self._run.state.lock:
                if self._run.stopped is not None:
                    return
                self._run.admit(self._admitted, given)
            self._admitted += 1

    def _feeds(self, item: Any) -> dict[str, Any]:
        if not isinstance(item, Mapping):
            if len(self._fed) != 1:
                raise GraphError(
                    f"{self._graph.name}: an item must be a mapping of {', '.join(self._fed) or 'no inputs'}, "
                    f"got {type(item).__name__}"
                )
            item = {self._fed[0]: item}
        carried = {name: self._first.get(name) for name in self._first}
        given = check_feeds(self._graph, {**carried, **item})
        return given if self._admitted == 0 else {k: v for k, v in given.items() if k not in carried}

    def close(self) -> None:
        """Ends the stream early; nothing further starts."""
        self._items = None
        self._admitted = self._taken
        _cancel(self._run)
        with self._run.state.lock:
            self._run.items.clear()
            self._run.last = None

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def timeline(self) -> Timeline:
        """The latest operations that ran."""
        return _timeline(self._run)


def _await(run: Run, number: int, timeout: float | None) -> dict[str, Any]:
    try:
        return _outputs(run, number, timeout)
    except Exception:
        raise
    except BaseException:
        # An interrupt: what was not started shall not start behind the caller's back.
        with run.state.lock:
            run.stop(Cancelled(f"{run.plan.graph.name}: interrupted"))
        raise


def _outputs(run: Run, number: int, timeout: float | None) -> dict[str, Any]:
    state, plan = run.state, run.plan
    if threading.current_thread() in state.threads:
        raise RuntimeError(
            f"{plan.graph.name}: an operation waits for a run on its own scheduler, whose threads it holds; "
            "give the inner run a scheduler of its own"
        )
    end = None if timeout is None else time.monotonic() + timeout
    with state.changed:
        item = run.items[number]
        while item.todo and run.stopped is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                run.stop(TimeoutError(_late(run, item, timeout)))
            else:
                state.changed.wait(left)
        if item.todo == 0:
            return {name: item.values[slot] for name, slot in plan.outputs.items()}
        assert run.stopped is not None
        late = isinstance(run.stopped, TimeoutError)
        grace = time.monotonic() + (0 if late else GRACE)
        while run.active and (left := grace - time.monotonic()) > 0:
            state.changed.wait(left)
        if run.active and not late:
            run.stopped.add_note(f"still running after {GRACE:g} s: {', '.join(run.running())}")
        run.last = None
    raise run.stopped


def _late(run: Run, item, timeout) -> str:
    running = ", ".join(run.running()) or "nothing"
    return (
        f"{run.plan.graph.name}: item {item.number} not done within {timeout:g} s: running {running}; "
        f"{item.todo} of {len(run.plan.ops)} operations not done"
    )


def _cancel(run: Run) -> None:
    with run.state.lock:
        run.stop(Cancelled(f"{run.plan.graph.name}: cancelled"))


def _timeline(run: Run) -> Timeline:
    with run.state.lock:
        raw = list(run.events)
    return Timeline(Event(run.plan.names[i], *rest) for i, *rest in raw)


def _close(state: State, timeout: float) -> list[str]:
    with state.lock:
        state.closed = True
        for run in list(state.runs):
            run.stop(Cancelled(f"{run.plan.graph.name}: the scheduler was closed"))
        for pool in state.pools.values():
            for _ in pool.now:
                pool.bell.put(None)
    end = time.monotonic() + timeout
    for thread in state.threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))
    with state.lock:
        return [
            f"operation {task[3].run.plan.names[task[1]]!r} on {pool.name}"
            for pool in state.pools.values()
            for task in pool.now
            if task is not None
        ]


def _abandon(state: State) -> None:
    # Called by the garbage collector, perhaps in a thread that holds the lock: takes none, waits for none.
    state.closed = True
    for pool in list(state.pools.values()):
        for _ in pool.now:
            pool.bell.put(None)


@atexit.register
def _close_all() -> None:
    for scheduler in list(_ALL):
        _close(scheduler._state, GRACE)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
