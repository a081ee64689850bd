"""Who watches a run by default: a panel in a notebook, a bar in a terminal, lines where nobody looks."""

from typing import Any

import jax

from cnnkit.notebook.shown import shell
from cnnkit.train import report


def default_watcher() -> report.Watcher:
    """The watcher that fits this process; in a job of several, only the first one speaks."""
    if jax.process_index() != 0:
        return Sampled(Quiet())
    if shell() is not None:
        from cnnkit.notebook.panel import Panel

        return Panel().show()
    return Sampled(report.plain()) if jax.process_count() > 1 else report.plain()


class Quiet:
    """Says nothing."""

    def begin(self, run: Any) -> None: ...
    def tick(self, run: Any) -> None: ...
    def row(self, run: Any, row: dict[str, Any]) -> None: ...
    def end(self, run: Any, why: str) -> None: ...


class Sampled:
    """Another watcher, and this process's devices sampled into the run's folder for all to see.

    Args:
        inner: who is told of the progress.
    """

    def __init__(self, inner: report.Watcher) -> None:
        self.inner = inner
        self._monitor: Any = None

    def begin(self, run: Any) -> None:
        """Begin to sample."""
        if run.folder is not None:
            from cnnkit.notebook.hosts import Writer
            from cnnkit.notebook.machine import Machine
            from cnnkit.notebook.monitor import Monitor

            write = Writer(run.folder, jax.process_index())
            self._monitor = Monitor(Machine(jax.local_devices()), 2.0, write).start()
        self.inner.begin(run)

    def tick(self, run: Any) -> None:
        """Hand on."""
        self.inner.tick(run)

    def row(self, run: Any, row: dict[str, Any]) -> None:
        """Hand on."""
        self.inner.row(run, row)

    def end(self, run: Any, why: str) -> None:
        """End sampling."""
        if self._monitor is not None:
            self._monitor.stop()
        self.inner.end(run, why)
