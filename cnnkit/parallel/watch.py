"""Who of a job's processes has ended or hangs, so that one that waits for it in vain can say so, and end too.

A collective whose partner is gone fails with the partner's address at best, and at worst waits for ever. So
all processes keep a connection to process 0, which the system closes when they end, however they do. A process
that hangs, or whose link is cut, keeps its connections; so all send a word over theirs every second, and one
that has not been heard of for long is given up by those that wait for it.
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

from cnnkit.parallel.meeting import read_line

GRACE = 15.0
"""Seconds that an exchange may last after a process has ended, until this one ends too."""

SILENCE = 20.0
"""Seconds without a word from a process until those that wait for it in an exchange give it up.

A link that was cut for 10 seconds is quiet for up to 13, as TCP doubles the time between its attempts; JAX ends
the job after 30, without saying why."""

BEAT = 1.0
"""Seconds between two words."""

WHAT_NOW = (
    "The record and the last checkpoint are whole: start the job again, with as many processes or fewer, "
    "and it goes on from there"
)

WORD, GIVEN_UP = b".", b"?"

_BROKEN = re.compile(r"gloo|nccl|connection|peer|socket", re.IGNORECASE)


class Watch:
    """One process's knowledge of the others.

    Args:
        process: this one's number.
        processes: how many there are.
        leave: what ends this process, with a text that says why.
        silence: seconds without a word from a process until it is given up; `SILENCE` when left out.
    """

    def __init__(
        self,
        process: int,
        processes: int,
        leave: Callable[[str], None] | None = None,
        silence: float | None = None,
    ) -> None:
        self.process, self.processes = process, processes
        self.silence = SILENCE if silence is None else silence
        self._leave = leave or _leave
        self._ended: list[int] = []
        self._known: list[int] = []  # the same, from the moment on that the others are told
        self._given_up: set[int] = set()
        self._heard: dict[int, float] = {}
        self._closed = False
        self.broken = False
        self._news = threading.Condition()
        self._since: float | None = None
        self._server: socket.socket | None = None
        self._connections: dict[int, socket.socket] = {}

    def open(self) -> int:
        """In process 0: listen; the port to be told to the others."""
        self._server = socket.create_server(("", 0), backlog=self.processes)
        self._thread(self._accept)
        self._thread(self._beat)
        return self._server.getsockname()[1]

    def follow(self, host: str, port: int) -> None:
        """In the others: connect to process 0."""
        connection = socket.create_connection((host, port), timeout=10)
        connection.settimeout(None)
        connection.sendall(f"{self.process}\n".encode())
        self._connections[0], self._heard[0] = connection, time.monotonic()
        self._thread(self._hear, 0, connection)
        self._thread(self._beat)

    def close(self) -> None:
        """Let go; to the others this process has ended."""
        self._since, self._closed = None, True
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
            self.broken = True
            # The news of an end may come a little later than its effect.
            raise RuntimeError(
                f"{self._who(self.ended(wait=3.0))} ({_first_line(error)}). {WHAT_NOW}"
            ) from error
        finally:
            self._since = None

    def _who(self, ended: list[int]) -> str:
        if not ended:
            return (
                "another process of this job has ended or cannot be reached, as its link is cut or too slow"
            )
        # The others that have ended by now ended for want of this one.
        who = f"process {ended[0]} of {self.processes}"
        if ended[0] not in self._given_up:
            return f"{who} has ended"
        return f"{who} has not been heard of for {self.silence:g} s: it hangs, or its link is cut or too slow"

    def _accept(self) -> None:
        assert self._server is not None
        while len(self._connections) < self.processes - 1:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            try:
                connection.settimeout(5)
                who = int(read_line(connection, 20))
                connection.settimeout(None)
            except (OSError, ValueError):
                connection.close()  # a stranger: port scanners knock at every open port
                continue
            with self._news:
                self._connections[who], self._heard[who] = connection, time.monotonic()
                before = list(self._known)
            for ended in before:
                self._send(connection, self._news_of(ended))
            self._thread(self._hear, who, connection)

    def _hear(self, who: int, connection: socket.socket) -> None:
        while True:
            try:
                line = read_line(connection, 20).strip()
                self._heard[who] = time.monotonic()
                if line != WORD:
                    self._tell(int(line.lstrip(GIVEN_UP)), line.startswith(GIVEN_UP))
            except (OSError, ValueError):
                break
        self._tell(who)

    def _beat(self) -> None:
        """Send a word every second, and give up those that have not sent one for long, if they are waited for."""
        while not self._closed:
            before = time.monotonic()
            time.sleep(min(BEAT, self.silence / 4))
            now = time.monotonic()
            if now - before > self.silence / 2:
                # This process stood still itself; what the others sent meanwhile is not read yet.
                self._heard = dict.fromkeys(self._heard, now)
            with self._news:
                here = {who: at for who, at in self._connections.items() if who not in self._ended}
            for who, connection in here.items():
                self._send(connection, WORD)
                if self._since is not None and now - self._heard[who] > self.silence:
                    self._tell(who, given_up=True)

    def _tell(self, who: int, given_up: bool = False) -> None:
        with self._news:
            if who in self._known:
                return
            self._known.append(who)
            if given_up:
                self._given_up.add(who)
            others = [connection for other, connection in self._connections.items() if other != who]
        # First to the others: whoever waits for the news here may end at once, and would seem to be the first to.
        for connection in others if self.process == 0 else ():
            self._send(connection, self._news_of(who))
        with self._news:
            self._ended.append(who)
            self._news.notify_all()
        self._thread(self._see_to_the_end, 0.0 if given_up else GRACE)

    def _news_of(self, who: int) -> bytes:
        return GIVEN_UP * (who in self._given_up) + str(who).encode()

    @staticmethod
    def _send(connection: socket.socket, line: bytes) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(line + b"\n")

    def _see_to_the_end(self, grace: float) -> None:
        """End this process if it goes on waiting for one that has ended."""
        heard = time.monotonic()
        while self._since is None or time.monotonic() - max(self._since, heard) < grace:
            time.sleep(0.1)
        self._leave(f"{self._who(self.ended())}, and this one waits for it in vain. {WHAT_NOW}")

    def _thread(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="cnnkit watch", daemon=True).start()


def begin(watch: Watch) -> None:
    """Make this the process's watch, until it ends."""
    global current
    current = watch
    atexit.register(_let_go, watch)


def _let_go(watch: Watch) -> None:
    watch.close()
    if watch.broken:
        # JAX would wait for the others until it takes the job for dead, and then abort with pages of text.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _leave(why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


current = Watch(0, 1)
