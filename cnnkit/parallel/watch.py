"""Who of a job's processes has ended, so that one that waits for it in vain can say so, and end too.

A collective whose partner is gone fails with the partner's address at best, and at worst waits for ever. So
all processes keep a connection to process 0, which the system closes when they end, however they do.
"""

import atexit
import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax

GRACE = 15.0
"""Seconds that an exchange may last after a process has ended, until this one ends too."""

WHAT_NOW = (
    "The record and the last checkpoint are whole: start the job again, with as many processes or fewer, "
    "and it goes on from there"
)

_BROKEN = re.compile(r"gloo|nccl|connection|peer|socket", re.IGNORECASE)


class Watch:
    """One process's knowledge of the others.

    Args:
        process: this one's number.
        processes: how many there are.
        leave: what ends this process, with a text that says why.
    """

    def __init__(self, process: int, processes: int, leave: Callable[[str], None] | None = None) -> None:
        self.process, self.processes = process, processes
        self._leave = leave or _leave
        self._ended: list[int] = []
        self._news = threading.Condition()
        self._since: float | None = None
        self._server: socket.socket | None = None
        self._connections: dict[int, socket.socket] = {}

    def open(self) -> int:
        """In process 0: listen; the port to be told to the others."""
        self._server = socket.create_server(("", 0), backlog=self.processes)
        self._thread(self._accept)
        return self._server.getsockname()[1]

    def follow(self, host: str, port: int) -> None:
        """In the others: connect to process 0."""
        connection = socket.create_connection((host, port), timeout=10)
        connection.settimeout(None)
        connection.sendall(f"{self.process}\n".encode())
        self._connections[0] = connection
        self._thread(self._hear, 0, connection)

    def close(self) -> None:
        """Let go; to the others this process has ended."""
        self._since = None
        for end in (self._server, *self._connections.values()):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def ended(self, wait: float = 0.0) -> list[int]:
        """The processes that have ended, the first one first, waited for that many seconds if none has yet."""
        with self._news:
            self._news.wait_for(lambda: self._ended, wait)
            return list(self._ended)

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Around whatever takes all processes.

        Raises:
            RuntimeError: it failed as another process is gone; the text names it.
        """
        self._since = time.monotonic()
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not _BROKEN.search(str(error)):
                raise
            # The news of an end may come a little later than its effect.
            raise RuntimeError(
                f"{self._who(self.ended(wait=3.0))} ({_first_line(error)}). {WHAT_NOW}"
            ) from error
        finally:
            self._since = None

    def _who(self, ended: list[int]) -> str:
        if not ended:
            return "another process of this job has ended or cannot be reached"
        # The others that have ended by now ended for want of this one.
        return f"process {ended[0]} of {self.processes} has ended"

    def _accept(self) -> None:
        assert self._server is not None
        while len(self._connections) < self.processes - 1:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            try:
                connection.settimeout(5)
                who = int(_line(connection))
                connection.settimeout(None)
            except (OSError, ValueError):
                connection.close()  # a stranger: port scanners knock at every open port
                continue
            with self._news:
                self._connections[who] = connection
                before = list(self._ended)
            for ended in before:
                self._send(connection, ended)
            self._thread(self._hear, who, connection)

    def _hear(self, who: int, connection: socket.socket) -> None:
        while True:
            try:
                self._tell(int(_line(connection)))
            except (OSError, ValueError):
                break
        self._tell(who)

    def _tell(self, who: int) -> None:
        with self._news:
            if who in self._ended:
                return
            self._ended.append(who)
            self._news.notify_all()
            others = [connection for other, connection in self._connections.items() if other != who]
        for connection in others if self.process == 0 else ():
            self._send(connection, who)
        self._thread(self._see_to_the_end)

    @staticmethod
    def _send(connection: socket.socket, who: int) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(f"{who}\n".encode())

    def _see_to_the_end(self) -> None:
        """End this process if it goes on waiting for one that has ended."""
        heard = time.monotonic()
        while self._since is None or time.monotonic() - max(self._since, heard) < GRACE:
            time.sleep(0.1)
        self._leave(f"{self._who(self.ended())}, and this one waits for it in vain. {WHAT_NOW}")

    def _thread(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="cnnkit watch", daemon=True).start()


def begin(watch: Watch) -> None:
    """Make this the process's watch, until it ends."""
    global current
    current = watch
    atexit.register(watch.close)


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        more = connection.recv(1)
        if not more or len(line) > 20:
            raise ValueError("the other side hung up")
        line += more
    return line


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _leave(why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


current = Watch(0, 1)
