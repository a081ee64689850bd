"""A way to another machine's port that goes quiet when that end closes, and does not break.

JAX keeps a connection to its service in process 0, and aborts a process the moment that this connection breaks,
with pages of text and no name. A connection that is merely quiet it bears for half of its heartbeat's time-out at
least, which is time enough to say in Python which process has ended.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable


class Relay:
    """Hands on, both ways, what comes to a port of this machine's own.

    Args:
        host: where to.
        port: where to; what is not there yet is waited for.
        patience: seconds to wait for it.
    """

    def __init__(self, host: str, port: int, patience: float) -> None:
        self._there, self._patience = (host, port), patience
        self._ends: list[socket.socket] = []  # kept, as a socket that is forgotten closes
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        _thread(self._accept)

    def close(self) -> None:
        """Hang up on both sides."""
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                here, _ = self._server.accept()
                self._ends.append(here)
                _thread(self._join, here)

    def _join(self, here: socket.socket) -> None:
        end = time.monotonic() + self._patience
        while True:
            try:
                there = socket.create_connection(self._there, timeout=10)
                break
            except OSError:
                if time.monotonic() > end:
                    return
                time.sleep(0.1)
        there.settimeout(None)
        self._ends.append(there)
        for one in (here, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _thread(self._answer, here, there)
        _pour(here, there)
        with contextlib.suppress(OSError):
            there.shutdown(socket.SHUT_WR)

    @staticmethod
    def _answer(here: socket.socket, there: socket.socket) -> None:
        if not _pour(there, here):
            # It never was the one that was looked for: the port was in other hands before. One looks again.
            with contextlib.suppress(OSError):
                here.shutdown(socket.SHUT_RDWR)


def _pour(source: socket.socket, sink: socket.socket) -> int:
    """Bytes handed on until one of the two closes."""
    poured = 0
    with contextlib.suppress(OSError):
        while some := source.recv(65536):
            sink.sendall(some)
            poured += len(some)
    return poured


def _thread(work: Callable[..., None], *args: object) -> None:
    threading.Thread(target=work, args=args, name="cnnkit relay", daemon=True).start()
