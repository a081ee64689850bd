"""All processes of a job in one view: each appends its samples to the run's folder, all can read them."""

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cnnkit.notebook.nvml import Sample
from cnnkit.record.folder import write_whole

MOST_BYTES = 256_000
SILENT = 15.0  # seconds after which a process counts as silent


class Other(NamedTuple):
    """What another process last wrote.

    Args:
        name: process and host.
        samples: of its devices.
        age: seconds since this process saw them change.
    """

    name: str
    samples: list[Sample]
    age: float


class Writer:
    """Appends samples to ``monitor-PROCESS.jsonl``, which stays under 256 kB.

    Args:
        folder: the run's folder, seen by all processes.
        process: this process's number.
        seconds: the least time between two lines.
    """

    def __init__(self, folder: str | os.PathLike[str], process: int, seconds: float = 2.0) -> None:
        self.path = Path(folder) / f"monitor-{process}.jsonl"
        self.process, self.seconds = process, seconds
        self._last = -seconds

    def __call__(self, samples: Sequence[Sample]) -> None:
        """Append a line, unless the last one is too young; a full disk is passed over: it is only a view."""
        now = time.monotonic()
        if now - self._last < self.seconds:
            return
        self._last = now
        devices = [
            {"device": s.device, "values": {k: _short(v) for k, v in s.values.items()}, "missing": s.missing}
            for s in samples
        ]
        line = {
            "time": round(time.time(), 1),
            "host": platform.node(),
            "process": self.process,
            "devices": devices,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            if self.path.stat().st_size > MOST_BYTES:
                lines = self.path.read_bytes().splitlines(keepends=True)
                write_whole(self.path, b"".join(lines[-len(lines) // 2 :]))
        except OSError:
            return


class Others:
    """Reads what the other processes write.

    Args:
        folder: the run's folder.
        me: this process's number, which is left out.
    """

    def __init__(self, folder: str | os.PathLike[str], me: int) -> None:
        self.folder, self.me = Path(folder), me
        # Clocks of hosts differ: what counts is when this process saw a line change.
        self._seen: dict[Path, tuple[Any, float]] = {}

    def read(self) -> list[Other]:
        """The newest line of each other process, by process."""
        found = []
        for path in sorted(self.folder.glob("monitor-*.jsonl"), key=lambda p: (len(p.name), p.name)):
            line = _last_line(path)
            if line is None or line.get("process") == self.me:
                continue
            if self._seen.get(path, (None, 0.0))[0] != line["time"]:
                self._seen[path] = line["time"], time.monotonic()
            samples = [Sample(d["device"], d["values"], d["missing"]) for d in line["devices"]]
            age = time.monotonic() - self._seen[path][1]
            found.append(Other(f"process {line['process']} on {line['host']}", samples, age))
        return found


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file that another process may be writing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_000))
            tail = file.read()
    except OSError:
        return None
    for raw in reversed(tail.splitlines(keepends=True)):
        if raw.endswith(b"\n"):
            try:
                line = json.loads(raw)
            except json.JSONDecodeError:
                continue
            if isinstance(line, dict) and {"time", "process", "host", "devices"} <= set(line):
                return line
    return None


def _short(value: float) -> float:
    return round(value) if abs(value) >= 100 else round(value, 1)
