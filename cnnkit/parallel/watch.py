"""Who of a job's processes has ended or hangs, so that one that waits for it in vain can say so, and end too.

A collective whose partner is gone fails with the partner's address at best, and at worst waits for ever. So
all processes keep a connection to process 0, which the system closes when they end, however they do. A process
that hangs, or whose link is cut, keeps its connections; so all send a word over theirs every second, and one
that has not been heard of for long is given up by those that wait for it.

A process that is done says so, and stays until all are: JAX's own ending is a meeting of all, and one that waits
there for a process that is gone is aborted.
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
import psutil

from cnnkit.parallel.meeting import read_line

GRACE = 15.0
"""Seconds that an exchange may last after a process has ended, until this one ends too."""

SILENCE = 20.0
"""Seconds without a word from a process until those that wait for it in an exchange give it up.

A link that was cut for 10 seconds is quiet for up to 13, as TCP doubles the time between its attempts; JAX ends
the job after 30, without saying why."""

LATEST = 30.0
"""Seconds after a process is gone until this one ends too, whatever it does."""

LINGER = 1.0
"""Seconds that a process which ends for want of another stays, so that the other's end is seen to be the first."""

BEAT = 1.0
"""Seconds between two words."""

WHAT_NOW = (
    "The record and the last checkpoint are whole: start the job again, with as many processes or fewer, "
    "and it goes on from there"
)

WORD, ALL_DONE = b".", b"!"

GONE, GIVEN_UP, DONE = b"", b"?", b"+"
"""How a process ended; before its number in the news."""

_BROKEN = re.compile(r"gloo|nccl|connection|peer|socket", re.IGNORECASE)


class Watch:
    """One process's knowledge of the others.

    Args:
        process: this one's number.
        processes: how many there are.
        leave: what ends this process, with a text that says why; `leave` when left out.
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
        self._leave = leave or self.leave
        self._ended: dict[int, bytes] = {}  # how, the first one first
        self._known: dict[int, bytes] = {}  # the same, from the moment on that the others are told
        self._heard: dict[int, float] = {}
        self._closed = self._finishing = self._all_done = False
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

    def reach(self, host: str, others: list[str], port: int) -> bool:
        """`follow`, at the first of process 0's `addresses` that answers; whether one does."""
        here = ["127.0.0.1"] if host == socket.gethostname() else []
        for address in (*here, *others, host):
            with contextlib.suppress(OSError):
                self.follow(address, port)
                return True
        return False

    def close(self) -> None:
        """Let go; to the others this process has ended."""
        self._since, self._closed = None, True
        for end in (self._server, *self._connections.values()):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def leave(self, why: str = "") -> None:
        """End this process as another one has ended."""
        if why:
            print(why, file=sys.stderr, flush=True)
        self.hang_up()
        time.sleep(LINGER)
        os._exit(1)

    def hang_up(self) -> None:
        """Have no more to say, after the one that this process ends for is told so: it may live, done and waiting."""
        for who in self.ended()[:1]:
            self._broadcast(GONE + str(who).encode())
        self._closed = True
        for connection in list(self._connections.values()):
            # Not closed, as what was just sent could be lost with what was not read.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)

    def finish(self, patience: float) -> str:
        """Say that this process is done, and wait until all are.

        Args:
            patience: seconds to wait.

        Returns:
            nothing when all are done; otherwise why this one waited in vain.
        """
        self._finishing = True
        self._broadcast(DONE + str(self.process).encode())
        with self._news:
            self._news.wait_for(lambda: self._done_by_all() or self._gone(), patience)
            gone, whole = self._gone(), self._done_by_all()
            self._all_done = whole and not gone
        if gone:
            return self._why(gone, ", and it was not done")
        if not whole:
            late = [who for who in range(self.processes) if who not in (self.process, *self._ended)]
            return f"process {late[0]} of {self.processes} is not done {patience:g} s after this one"
        if self.process == 0:
            self._broadcast(ALL_DONE)
        return ""

    def _done_by_all(self) -> bool:
        done = [how for how in self._ended.values() if how == DONE]
        return self._all_done or (self.process == 0 and len(done) == self.processes - 1)

    @property
    def blamed(self) -> bool:
        """Whether another process ended because it waited in vain for this one, which was done, or quiet."""
        return self.process in self._ended

    def _gone(self) -> list[int]:
        return [who for who, how in self._ended.items() if how != DONE]

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
            raise RuntimeError(self._why(self.ended(wait=3.0), f" ({_first_line(error)})")) from error
        finally:
            self._since = None

    def _why(self, ended: list[int], more: str) -> str:
        """Why this process has to end, with more on the one that ended."""
        if self.blamed:
            return f"another process of this job waited for this one in vain, and has ended. {WHAT_NOW}"
        return f"{self._who(ended)}{more}. {WHAT_NOW}"

    def _who(self, ended: list[int]) -> str:
        if not ended:
            return (
                "another process of this job has ended or cannot be reached, as its link is cut or too slow"
            )
        # The others that have ended by now ended for want of this one.
        who = f"process {ended[0]} of {self.processes}"
        if self._ended[ended[0]] != GIVEN_UP:
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
                before = dict(self._known)
            for ended, how in before.items():
                self._send(connection, how + str(ended).encode())
            self._thread(self._hear, who, connection)

    def _hear(self, who: int, connection: socket.socket) -> None:
        while True:
            try:
                line = read_line(connection, 20).strip()
                self._heard[who] = time.monotonic()
                if line == ALL_DONE:
                    with self._news:
                        self._all_done = True
                        self._news.notify_all()
                elif line != WORD:
                    how = line[:1] if line[:1] in (GIVEN_UP, DONE) else GONE
                    self._tell(int(line.removeprefix(how)), how)
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
                waits = self._finishing or self._since is not None
                if waits and now - self._heard[who] > self.silence:
                    self._tell(who, GIVEN_UP)

    def _tell(self, who: int, how: bytes = GONE) -> None:
        with self._news:
            # One that was done may yet be gone before all are; what it does once all are is its own affair.
            known = DONE if who == self.process else self._known.get(who)
            if self._closed or self._all_done or known not in (None, DONE) or known == how:
                return
            self._known[who] = how
        # First to the others: whoever waits for the news here may end at once, and would seem to be the first to.
        if self.process == 0:
            self._broadcast(how + str(who).encode())
        with self._news:
            self._ended[who] = how
            self._news.notify_all()
        self._thread(self._see_to_the_end, how)

    def _broadcast(self, line: bytes) -> None:
        for connection in list(self._connections.values()):
            self._send(connection, line)

    @staticmethod
    def _send(connection: socket.socket, line: bytes) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(line + b"\n")

    def _see_to_the_end(self, how: bytes) -> None:
        """End this process if it goes on waiting for one that has ended, or soon when that one is gone for good."""
        heard, grace = time.monotonic(), 0.0 if how == GIVEN_UP else GRACE
        while self._since is None or time.monotonic() - max(self._since, heard) < grace:
            if self._closed:
                return
            if how != DONE and time.monotonic() - heard > LATEST:
                self._leave(self._why(self._gone(), ", and the job cannot go on without it"))
            time.sleep(0.1)
        self._leave(self._why(self.ended(), ", and this one waits for it in vain"))

    def _thread(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="cnnkit watch", daemon=True).start()


def addresses() -> tuple[str, list[str]]:
    """This machine's name, and its addresses of IPv4 that others may know."""
    found = [
        address.address
        for each in psutil.net_if_addrs().values()
        for address in each
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    return socket.gethostname(), found


def begin(watch: Watch, patience: float) -> None:
    """Make this the process's watch, until it ends.

    Args:
        watch: the watch.
        patience: seconds that this process, once it is done, waits for the others to be.
    """
    global current
    current = watch
    atexit.register(_let_go, watch, patience)


def _let_go(watch: Watch, patience: float) -> None:
    """What a process does last: it leaves JAX's own ending, a meeting of all, to those that will all come there."""
    sys.stdout.flush()
    sys.stderr.flush()
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    interrupted = isinstance(error, KeyboardInterrupt)
    if watch.broken or (error is not None and watch.ended()):
        watch.leave()
    if error is not None and not interrupted:
        os._exit(1)
    try:
        why = watch.finish(patience)
    except KeyboardInterrupt:
        os._exit(130)
    if why and interrupted:
        os._exit(130)
    if why and watch.blamed:
        print(why, file=sys.stderr, flush=True)
        os._exit(1)
    if why:
        watch.leave(why)
    # The watch stays open: a word that is on its way could be lost with it.


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


current = Watch(0, 1)
