"""The state of a run and the threads that work on it: counters, queues, bells.

Every operation of every item has a counter of what it still waits for; whoever finishes an operation counts
down those behind it, wherever they run, and queues the ones that reach zero. That counter is the event that
joins the queues. The finisher then goes on with the most urgent operation of its own queue without a
hand-over to another thread.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, MutableSequence
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any

import jax

from cnnkit.graph.cost import split
from cnnkit.graph.plan import Plan

_now = time.perf_counter
# (item, operation, run's number, Item, when it became ready): sorts by item, then by urgency.
Task = tuple[int, int, int, "Item", float]


class OperationError(RuntimeError):
    """An operation failed; ``operation`` and ``item`` say which, ``__cause__`` holds its own error."""

    def __init__(self, text: str, operation: str, item: int):
        super().__init__(text)
        self.operation, self.item = operation, item


class Cancelled(RuntimeError):
    """The run was cancelled."""


class Pool:
    """A resource's queue of ready operations and the threads that serve it."""

    def __init__(self, name: str, threads: int):
        self.name = name
        self.heap: list[Task] = []
        self.idle = 0
        self.bell: SimpleQueue[None] = SimpleQueue()
        self.now: list[Task | None] = [None] * threads


class State:
    """What the threads of a scheduler share; it does not hold the scheduler, which may be collected."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.pools: dict[str, Pool] = {}
        self.threads: list[threading.Thread] = []
        self.runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self.closed = False
        self.count = 0

    def pool(self, name: str, threads: int, prefix: str) -> Pool:
        """The pool of that resource, its threads started when it is first asked for."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the scheduler is closed; make another")
            if name in self.pools:
                return self.pools[name]
            pool = self.pools[name] = Pool(name, threads)
            made = [
                threading.Thread(target=_work, args=(self, pool, i), name=f"{prefix} {name} {i}", daemon=True)
                for i in range(threads)
            ]
            self.threads += made
            for thread in made:
                thread.start()
        return pool


class Item:
    """One pass through the graph: the blobs' values, and what each operation still waits for."""

    __slots__ = ("done", "left", "number", "run", "todo", "uses", "values")

    def __init__(self, run: "Run", number: int):
        plan = run.plan
        self.run, self.number = run, number
        self.values: list[Any] = [None] * len(plan.slot)
        self.left = list(plan.needs)
        self.uses = list(plan.uses)
        self.done = bytearray(len(plan.ops))
        self.todo = len(plan.ops)


class Run:
    """One graph being run, on one item or on a stream of them. All methods expect the state's lock held."""

    def __init__(self, state: State, plan: Plan, pools: list[Pool], history: int | None):
        self.state, self.plan, self.pools = state, plan, pools
        self.items: dict[int, Item] = {}
        self.last: Item | None = None
        self.retired = 0
        self.active = 0
        self.stopped: Exception | None = None
        self.events: MutableSequence[tuple] = [] if history is None else deque(maxlen=history)
        state.count += 1
        self.number = state.count
        state.runs.add(self)

    def admit(self, number: int, feeds: Mapping[str, Any]) -> None:
        """Takes an item in: what waits for nothing is queued."""
        plan, item, before = self.plan, Item(self, number), self.last
        for name, value in feeds.items():
            item.values[plan.slot[name]] = value
        if before is not None:
            for into, n in enumerate(plan.next_needs):
                item.left[into] += n
            for out, to in plan.handed_inputs:
                item.values[to] = before.values[out]
            for i, done in enumerate(before.done):
                if done:
                    self._cross(i, before, item)
        for i, ahead in plan.aheads:
            item.left[i] += number - ahead >= self.retired
        self.items[number] = self.last = item
        now = _now()
        for i in plan.starts:
            if item.left[i] == 0:
                self.push(item, i, now)
        if item.todo == 0:
            self.state.changed.notify_all()

    def _cross(self, i: int, before: Item, item: Item) -> None:
        for out, to in self.plan.handed[i]:
            item.values[to] = before.values[out]
        for j in self.plan.next_consumers[i]:
            item.left[j] -= 1

    def retire(self, number: int) -> None:
        """Lets an item go: operations that may not be too far ahead of the consumer move on."""
        del self.items[number]
        self.retired = number + 1
        for i, ahead in self.plan.aheads:
            later = self.items.get(number + ahead)
            if later is not None:
                self._count_down(later, (i,), _now())

    def push(self, item: Item, i: int, now: float, own: Pool | None = None) -> bool:
        """Queues an operation; rings for a thread, unless the pool's own finisher will look anyway."""
        pool = self.pools[i]
        heappush(pool.heap, (item.number, i, self.number, item, now))
        if pool is own:
            return True
        if pool.idle:
            pool.idle -= 1
            pool.bell.put(None)
        return False

    def _count_down(self, item: Item, which, now: float, own: Pool | None = None) -> Pool | None:
        left = item.left
        for j in which:
            left[j] -= 1
            if left[j] == 0 and self.push(item, j, now, own):
                own = None
        return own

    def finish(self, item: Item, i: int, made: Any, now: float, own: Pool | None) -> None:
        """Stores what an operation made and counts down those behind it."""
        plan, values, uses = self.plan, item.values, item.uses
        if plan.arity[i] == 1:
            made = (made,)
        for slot, value in zip(plan.writes[i], made):
            if uses[slot]:
                values[slot] = value
        for slot in plan.frees[i]:
            uses[slot] -= 1
            if uses[slot] == 0:
                values[slot] = None
        item.done[i] = 1
        own = self._count_down(item, plan.consumers[i], now, own)
        crossing = plan.next_consumers[i]
        if crossing or plan.handed[i]:
            later = self.items.get(item.number + 1)
            if later is not None:
                for out, to in plan.handed[i]:
                    later.values[to] = values[out]
                self._count_down(later, crossing, now, own)
        item.todo -= 1
        if item.todo == 0:
            self.state.changed.notify_all()

    def stop(self, error: Exception) -> None:
        """Ends the run: queued operations are dropped, those running end on their own. The first error stays."""
        if self.stopped is None:
            self.stopped = error
            self.state.changed.notify_all()

    def running(self) -> list[str]:
        """What runs now, in words."""
        tasks = [(pool, task) for pool in self.state.pools.values() for task in pool.now]
        return [
            f"{self.plan.names[task[1]]!r} on {pool.name}"
            for pool, task in tasks
            if task is not None and task[3].run is self
        ]


def _take(pool: Pool) -> Task | None:
    heap = pool.heap
    while heap:
        task = heappop(heap)
        run = task[3].run
        if run.stopped is None:
            run.active += 1
            return task
    return None


def _work(state: State, pool: Pool, lane: int) -> None:
    task: Task | None = None
    while True:
        if task is None:
            with state.lock:
                if state.closed:
                    return
                task = _take(pool)
                if task is None:
                    pool.idle += 1
        if task is None:
            pool.bell.get()
        else:
            task = _fire(state, pool, lane, task)


def _fire(state: State, pool: Pool, lane: int, task: Task) -> Task | None:
    number, i, _, item, ready = task
    run, plan = item.run, item.run.plan
    pool.now[lane] = task
    made = error = None
    start = _now()
    try:
        values = item.values
        made = plan.calls[i](*[values[slot] for slot in plan.reads[i]])  # type: ignore[misc]
        if plan.waits[i]:
            jax.block_until_ready(made)
        if plan.arity[i] != 1:
            made = split(plan.graph, plan.names[i], made)
    except BaseException as problem:
        # Without this frame, whoever keeps the error does not keep the blobs.
        error = problem.with_traceback(problem.__traceback__ and problem.__traceback__.tb_next)
    end = _now()
    with state.lock:
        pool.now[lane] = None
        run.active -= 1
        run.events.append((i, number, pool.name, lane, ready, start, end))
        if run.stopped is None:
            if error is None:
                run.finish(item, i, made, end, pool)
            else:
                run.stop(_named(run, i, number, pool, error))
        if run.active == 0 and run.stopped is not None:
            state.changed.notify_all()
        return _take(pool) if not state.closed else None


def _named(run: Run, i: int, item: int, pool: Pool, error: BaseException) -> OperationError:
    name = run.plan.names[i]
    text = f"{run.plan.graph.name}: operation {name!r} (item {item}, on {pool.name}) failed: "
    made = OperationError(f"{text}{type(error).__name__}: {error}", name, item)
    made.__cause__ = error
    return made
