"""Watching devices: a thread that samples, a short history, a summary, and a live view of its own."""

import math
import threading
import time
from collections import defaultdict, deque
from typing import Any

from cnnkit.notebook.machine import Machine
from cnnkit.notebook.nvml import Sample

KEPT = 120  # samples of the recent past
SUMMED = ("utilization", "process", "memory_used", "power", "temperature", "jax_memory")


class Monitor:
    """Samples of every device, taken in a thread of its own.

    Args:
        machine: what is read; closed when the monitor stops.
        seconds: between two samples.
        write: is given each set of samples, e.g. `hosts.Writer`.
    """

    def __init__(self, machine: Machine, seconds: float = 1.0, write: Any = None) -> None:
        self.machine, self.seconds, self.write = machine, seconds, write
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._recent: dict[str, deque[Sample]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._sums: dict[tuple[str, str], tuple[int, float, float]] = {}
        self._thread: threading.Thread | None = None
        self.failure = ""

    def start(self) -> "Monitor":
        """Begin sampling."""
        self._thread = threading.Thread(target=self._work, name="cnnkit monitor", daemon=True)
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether its thread samples."""
        return self._thread is not None

    @property
    def ended(self) -> bool:
        """Whether it has stopped for good."""
        return self._end.is_set()

    def stop(self) -> None:
        """End the thread and let NVML go; what was sampled stays."""
        self._end.set()
        if self._thread is None:
            self.machine.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(5)
        self._thread = None

    def take(self) -> list[Sample]:
        """Sample now."""
        samples = self.machine.samples()
        with self._lock:
            for sample in samples:
                self._recent[sample.device].append(sample)
                for name in SUMMED:
                    if name in sample.values:
                        value = sample.values[name]
                        n, total, top = self._sums.get((sample.device, name), (0, 0.0, -math.inf))
                        self._sums[sample.device, name] = n + 1, total + value, max(top, value)
        return samples

    def latest(self) -> list[Sample]:
        """The newest sample of each device."""
        with self._lock:
            return [recent[-1] for recent in self._recent.values()]

    def recent(self, device: str, reading: str) -> list[float]:
        """One reading's recent values, oldest first; nan where it was missing."""
        with self._lock:
            return [s.values.get(reading, math.nan) for s in self._recent[device]]

    def mean(self, device: str, reading: str) -> float:
        """Of all samples since the start; nan where there are none."""
        n, total, _ = self._sums.get((device, reading), (0, 0.0, 0.0))
        return total / n if n else math.nan

    def most(self, device: str, reading: str) -> float:
        """The largest of all samples since the start; nan where there are none."""
        n, _, top = self._sums.get((device, reading), (0, 0.0, 0.0))
        return top if n else math.nan

    def _work(self) -> None:
        try:
            while not self._end.is_set():
                begin = time.monotonic()
                samples = self.take()
                if self.write is not None:
                    self.write(samples)
                # A slow driver must not turn sampling into load.
                took = time.monotonic() - begin
                self._end.wait(max(self.seconds - took, 4 * took, 0.05))
        except Exception as error:  # a monitor must never end a training
            self.failure = f"the monitor ended: {error}"
        finally:
            self.machine.close()
