"""Tasks to hold schedulers against: random graphs of work that holds no lock, and a thread for each task."""

import hashlib
import random
import threading
import time
from collections.abc import Callable

from cnnkit.graph import Graph


def random_graph(
    n: int, run: Callable[..., object], resources=("cpu",), window: int = 24, seed: int = 0
) -> Graph:
    """n operations, each reading up to three of the last few: about eight may run at once."""
    draw = random.Random(seed)
    graph = Graph(f"{n} operations")
    for i in range(n):
        inputs = (
            {f"o{draw.randrange(max(0, i - window), i)}" for _ in range(draw.randint(0, 3))} if i else set()
        )
        graph.add(f"o{i}", run, sorted(inputs), on=draw.choice(resources), wait=False)
    return graph


class ThreadPerTask:
    """Starts a thread for an operation when its inputs are ready: what queues and pools are to replace."""

    def __init__(self, graph: Graph):
        self.graph, self.after = graph, graph.edges()
        self.needs = {name: len(graph.before(name)) for name in graph.ops}

    def run(self) -> None:
        self.left, self.lock = dict(self.needs), threading.Lock()
        self.values: dict[str, object] = {}
        self.todo, self.done = len(self.graph.ops), threading.Event()
        for name, needed in self.needs.items():
            if needed == 0:
                threading.Thread(target=self._one, args=(name,)).start()
        self.done.wait()

    def _one(self, name: str) -> None:
        op = self.graph.ops[name]
        assert op.run is not None
        made = op.run(*[self.values[blob] for blob in op.inputs])
        with self.lock:
            self.values[name] = made
            ready = []
            for later in self.after[name]:
                self.left[later] -= 1
                if self.left[later] == 0:
                    ready.append(later)
            self.todo -= 1
            if self.todo == 0:
                self.done.set()
        for later in ready:
            threading.Thread(target=self._one, args=(later,)).start()


def work(microseconds: float, rate: float) -> Callable[..., int]:
    """A function that hashes for about that long, without the interpreter's lock."""
    data = bytes(max(2048, int(microseconds * rate)))

    def hashes(*inputs: object) -> int:
        hashlib.sha256(data).digest()
        return len(inputs)

    return hashes


def hash_rate() -> float:
    """Bytes a microsecond of SHA-256 on one core."""
    data, best = bytes(1 << 20), float("inf")
    for _ in range(20):
        start = time.perf_counter()
        hashlib.sha256(data).digest()
        best = min(best, time.perf_counter() - start)
    return len(data) / best / 1e6
