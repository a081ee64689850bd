"""Random graphs for the property tests."""

import random

from cnnkit.graph import Graph

RESOURCES = ("cpu", "compute", "compute:1", "copy_in", "copy_out", "network")


def random_graph(n: int, seed: int, breaks: int | None = None, watch=None) -> Graph:
    """n operations on random resources, each reading up to four of the blobs before it, sums as values.

    Args:
        n: operations.
        seed: of everything drawn.
        breaks: the operation that raises.
        watch: called with the operation's number before each operation.
    """
    draw = random.Random(seed)
    window = draw.choice((1, 3, 20, n))
    graph = Graph(f"random {n} {seed}", inputs=["x"])
    blobs = ["x"]
    for i in range(n):
        inputs = [draw.choice(blobs[-window:]) for _ in range(draw.randint(0, 4))]
        outputs = [f"b{i}.{k}" for k in range(draw.choice((1, 1, 1, 2, 3)))]
        run = _operation(i, len(outputs), i == breaks, watch)
        # No device is behind these resources, so nothing is to be waited for.
        graph.add(f"op{i}", run, inputs, outputs, on=draw.choice(RESOURCES), wait=False)
        blobs += outputs
    return graph


def _operation(i: int, outputs: int, breaks: bool, watch):
    def run(*values):
        if watch is not None:
            watch(i)
        if breaks:
            raise ArithmeticError(f"operation {i} was made to fail")
        total = (i + sum(values)) % 1_000_003
        return total if outputs == 1 else tuple(total + k for k in range(outputs))

    return run
