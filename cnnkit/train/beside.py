"""What a training needs later is compiled while its first epoch runs."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax

from cnnkit.train.solo import Solo

if TYPE_CHECKING:
    from cnnkit.train.run import Run

AT_ONCE = 4


@contextlib.contextmanager
def compiling_later_programs(run: "Run", engine: Any) -> Iterator[None]:
    """Within it, programs of later epochs and of evaluation are compiled by other threads, on a GPU.

    There a program takes seconds, on cores that a training leaves idle; on a CPU it would take them from it. To compile
    tries algorithms out, in memory of its own: where the training takes more than half of the GPU's, it waits. What
    fails is compiled again where it is needed, and told there. At the end what has not begun is given up.

    Args:
        run: that trains.
        engine: by which it does.
    """
    if not _pays() or not isinstance(engine, Solo) or engine.later or not _room(engine):
        yield
        return
    model = jax.tree.map(engine.like, engine.model())
    # One epoch for each program, the next one's first; the one that begins now is compiled by who waits for it.
    later = {run.task.at(epoch): epoch for epoch in reversed(range(run.epoch + 1, run.epochs))}
    later.pop(run.task.at(run.epoch), None)
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cnnkit compiling")

    def begin() -> None:
        engine.later = True
        for epoch in sorted(later.values()):
            pool.submit(engine.prepare, model, run.mini_batches, run.batch, epoch)
        with contextlib.suppress(Exception):
            for part in run.judge:
                pool.submit(run.judges[part].prepare, model.params, model.state)

    engine.on_its_way = begin  # not before, as the first step would wait for algorithms to be tried out
    try:
        yield
    finally:
        engine.on_its_way = None
        pool.shutdown(wait=False, cancel_futures=True)


def _pays() -> bool:
    return jax.default_backend() != "cpu"


def _room(engine: Solo) -> bool:
    """Whether half of the device's memory, or more, is left beside what trains."""
    (device,) = engine.source.labels.devices()
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit is None or 2 * engine.needs() <= limit
