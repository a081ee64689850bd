"""A live view of the machine's GPUs and CPUs by itself, with or without a run."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from cnnkit.notebook import strips
from cnnkit.notebook.hosts import Others
from cnnkit.notebook.machine import Machine
from cnnkit.notebook.monitor import Monitor
from cnnkit.notebook.shown import Shown, shell

_live: "Gpus | None" = None


def gpus(
    devices: Sequence[Any] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    seconds: float = 1.0,
    minutes: float = 10.0,
) -> "Gpus":
    """Utilization, memory, power and temperature of every GPU, and the CPU's.

    As a cell's value it moves until `Gpus.stop`, the next ``gpus()``, or the end of its minutes, and then
    stays as it is. Printed, it is a table of this moment.

    Args:
        devices: JAX devices of this process, e.g. ``jax.local_devices()``: shows these alone, and JAX's own
            memory figures beside NVML's. When left out, every GPU that NVML sees, and JAX is left alone: it
            would take most of a GPU's memory when started.
        folder: of a run whose other processes are shown too.
        seconds: between two samples.
        minutes: for which it moves.
    """
    return Gpus(Monitor(Machine(devices), seconds), folder, minutes)


class Gpus:
    """What `gpus` gives."""

    def __init__(
        self, monitor: Monitor, folder: str | os.PathLike[str] | None = None, minutes: float = 10.0
    ) -> None:
        self.monitor, self.minutes = monitor, minutes
        self._others = Others(folder, me=-1) if folder is not None else None
        self._shown = Shown()
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    def stop(self) -> None:
        """Stop moving; the last state stays."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(5)
            self._thread = None
        self.monitor.stop()

    def __repr__(self) -> str:
        others = self._others.read() if self._others else []
        lines = strips.devices_text(self._samples())
        for other in others:
            lines += [f"{other.name}:", *(f"  {line}" for line in strips.devices_text(other.samples))]
        return "\n".join(lines + self._reasons())

    def _repr_html_(self) -> str:
        others = self._others.read() if self._others else []
        told = strips.devices_html(self._samples(), self.monitor) + strips.others_html(others)
        notes = "".join(f'<div style="opacity:.75">{reason}</div>' for reason in self._reasons())
        return f'<div style="font:13px/1.5 sans-serif;overflow-x:auto">{told}{notes}</div>'

    def _ipython_display_(self) -> None:
        global _live
        if shell() is None:
            print(repr(self))
            return
        if _live is not None:
            _live.stop()
        _live = self
        self._publish()
        if self.monitor.ended or self._thread is not None:
            return
        self.monitor.start()
        self._thread = threading.Thread(target=self._work, name="cnnkit gpus", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        until = time.monotonic() + 60 * self.minutes
        while not self._end.wait(self.monitor.seconds) and time.monotonic() < until:
            self._publish()
        self.monitor.stop()

    def _publish(self) -> None:
        self._shown.publish({"text/plain": repr(self), "text/html": self._repr_html_()})

    def _samples(self) -> Any:
        """The newest ones; taken now where no thread takes them."""
        return self.monitor.latest() if self.monitor.running or self.monitor.ended else self.monitor.take()

    def _reasons(self) -> list[str]:
        why = self.monitor.machine.why_no_gpu
        return [f"no GPU readings: {why}"] if why else []
