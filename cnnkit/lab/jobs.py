"""A command running as several processes: its statuses, its logs, one live view of them."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

FORCE = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL
PATIENCE = 5.0  # seconds that processes get to end by themselves before they are made to


class JobFailed(RuntimeError):
    """A process of a job failed: `status` is the first one's exit status, `statuses` has everyone's."""

    def __init__(self, text: str, status: int, statuses: Mapping[str, int | None]) -> None:
        super().__init__(text)
        self.status = status
        self.statuses = dict(statuses)


class Job:
    """What a cluster's and a launch's processes have in common. Subclasses write `poll` and `signal`.

    Args:
        names: of the processes, e.g. ``["node0", "node1"]``.
        logs: where each one's output goes.
    """

    def __init__(self, names: Sequence[str], logs: Sequence[Path]) -> None:
        self.names = list(names)
        self.logs = dict(zip(names, logs))
        # Logs are appended to; what stood there before is from an earlier run into the same folder.
        self.begun = {name: _size(path) for name, path in self.logs.items()}
        self.statuses: dict[str, int | None] = dict.fromkeys(names)
        self.failed: list[str] = []  # in the order in which they failed

    def poll(self, timeout: float = 0.0) -> dict[str, int | None]:
        """Each process's exit status: None while it runs, minus the signal's number if one ended it.

        Args:
            timeout: wait so many seconds for news.
        """
        raise NotImplementedError

    def signal(self, number: int, name: str | None = None) -> None:
        """Send a signal to the running processes, or to one of them."""
        raise NotImplementedError

    def _end(self, name: str, status: int) -> None:
        self.statuses[name] = status
        if status != 0:
            self.failed.append(name)

    @property
    def running(self) -> bool:
        """Whether a process was still running at the last poll."""
        return None in self.statuses.values()

    def wait(self, timeout: float | None = None) -> dict[str, int | None]:
        """Wait for all processes, and return their exit statuses.

        Raises:
            TimeoutError: some still run after so many seconds; they go on running.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll(0.05) and self.running:
            if end is not None and time.monotonic() > end:
                still = ", ".join(name for name, status in self.statuses.items() if status is None)
                raise TimeoutError(f"still running after {timeout:g} s: {still}")
        return self.statuses

    def kill(self) -> None:
        """End all processes: politely, then surely."""
        for number in (signal.SIGTERM, FORCE):
            if not self.running:
                return
            self.signal(number)
            end = time.monotonic() + PATIENCE
            while self.poll(0.02) and self.running and time.monotonic() < end:
                pass

    def tail(self, name: str, lines: int = 20) -> str:
        """The last lines that a process wrote."""
        if not self.logs[name].exists():
            return ""
        written = self.logs[name].read_bytes()[self.begun[name] :]
        return "\n".join(written.decode("utf-8", "replace").splitlines()[-lines:])

    def check(self) -> None:
        """Raise JobFailed, with the first failing process's last lines, unless all ended with status 0."""
        if not self.failed:
            return
        first = self.failed[0]
        status = self.statuses[first]
        assert status is not None  # it is among the failed because it ended
        last = "\n".join(f"  {line}" for line in self.tail(first).splitlines()) or "  (no output)"
        every = ", ".join(f"{name} {describe(status)}" for name, status in self.statuses.items())
        raise JobFailed(
            f"{first} failed first: {describe(status)}. Its last lines:\n{last}\n"
            f"All: {every}. Logs: {self.logs[first].parent}",
            status,
            self.statuses,
        )

    def follow(self, *, show: bool = True, keep_going: bool = False, out: TextIO | None = None) -> None:
        """Wait for all processes while showing what they write, one prefix a process.

        Args:
            show: print their lines as they come.
            keep_going: let the others run on when one fails; otherwise they get five seconds.
            out: where to print; standard output.

        An interrupt is passed on to every process, so that each can save its work, and raised once they ended.
        """
        view = View(self.logs, self.begun, out or sys.stdout) if show else None
        give_up = None
        try:
            while self.poll(0.05) and self.running:
                if view:
                    view.update()
                if self.failed and not keep_going:
                    give_up = give_up or time.monotonic() + PATIENCE
                    if time.monotonic() > give_up:
                        self.kill()
        except KeyboardInterrupt:
            self.signal(signal.SIGINT)
            try:
                self.wait(2 * PATIENCE)
            except (TimeoutError, KeyboardInterrupt):
                self.kill()
            raise
        finally:
            if view:
                view.update(last=True)


class View:
    """Prints what is added to log files, line by line, each with its name before it."""

    def __init__(self, logs: Mapping[str, Path], begun: Mapping[str, int], out: TextIO) -> None:
        self.out = out
        self.width = max(map(len, logs))
        self.logs = {name: (path, begun[name]) for name, path in logs.items()}
        self.rest = dict.fromkeys(logs, b"")

    def update(self, last: bool = False) -> None:
        """Print the lines that were finished since; at last, unfinished ones too."""
        for name, (path, seen) in self.logs.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(seen)
                new = file.read()
            self.logs[name] = (path, seen + len(new))
            *lines, self.rest[name] = (self.rest[name] + new).split(b"\n")
            if last and self.rest[name]:
                lines, self.rest[name] = [*lines, self.rest[name]], b""
            for line in lines:
                # What a progress bar wrote over itself is of no use in a log of several.
                text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
                print(f"{name:<{self.width}} | {text}", file=self.out, flush=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def describe(status: int | None) -> str:
    """An exit status in words.

    >>> describe(-9)
    'killed by SIGKILL'
    """
    if status is None:
        return "still running"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
