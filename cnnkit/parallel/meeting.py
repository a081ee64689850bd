"""Calling the roll before a job of several processes starts, so that whoever is missing has a name.

JAX's own start ends the whole process with a stack trace when one of the others never comes, and does
not say which one.
"""

import contextlib
import json
import socket
import time
from typing import Any

_GRACE = 10.0
"""Seconds that others wait longer than process 0, which then has told them who was missing."""


def roll_call(coordinator: str, process: int, processes: int, timeout: float, word: Any = None) -> Any:
    """Wait until all processes of a job are there; process 0 counts, at the coordinator's port.

    Args:
        coordinator: ``host:port`` of process 0; the port is free again afterwards.
        process: this one's number.
        processes: how many there are.
        timeout: seconds to wait.
        word: what process 0 has to say to all, as plain data.

    Returns:
        process 0's word.

    Raises:
        RuntimeError: some did not come, two have the same number, or they disagree on how many they are;
            the text names them, and is the same in all processes that came.
        ValueError: the coordinator is not host:port.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"coordinator {coordinator!r} is not host:port, such as 10.0.0.1:12345")
    if process == 0:
        _count(int(port), processes, timeout, coordinator, word)
        return word
    return _answer(host.strip("[]"), int(port), process, processes, timeout, coordinator)


def _count(port: int, processes: int, timeout: float, coordinator: str, word: Any) -> None:
    end = time.monotonic() + timeout
    here: set[int] = set()
    connections = []
    fault = ""
    with contextlib.ExitStack() as closing:
        server = closing.enter_context(_listen(port, processes, coordinator))
        while len(here) < processes - 1 and not fault and time.monotonic() < end:
            server.settimeout(max(end - time.monotonic(), 0.01))
            try:
                connection, _ = server.accept()
                closing.enter_context(connection)
                connection.settimeout(5)
                said = _hear(connection)
                who, count = int(said["process"]), int(said["processes"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # nobody came, or a stranger: port scanners knock at every open port
            if count != processes:
                fault = f"process {who} counts {count} processes, process 0 counts {processes}"
            elif who in here or who == 0:
                fault = f"two processes say that they are process {who} of {processes}"
            here.add(who)
            connections.append(connection)
        missing = [str(i) for i in range(1, processes) if i not in here]
        if missing and not fault:
            they = "process" if len(missing) == 1 else "processes"
            fault = (
                f"{they} {', '.join(missing)} of {processes} did not come to {coordinator} within {timeout:g} s: "
                "look at their logs, and whether they reach that address"
            )
        for connection in connections:
            with contextlib.suppress(OSError):
                _say(connection, {"fault": fault, "word": word})
                # Who closes first keeps the port busy for a minute; let that be the other side.
                connection.recv(1)
    if fault:
        raise RuntimeError(fault)


def _listen(port: int, processes: int, coordinator: str) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=processes
                )
        return socket.create_server(("", port), backlog=processes)
    except OSError as error:
        raise RuntimeError(
            f"process 0 cannot listen at {coordinator} ({error}): is another job there? Take another port"
        ) from None


def _answer(host: str, port: int, process: int, processes: int, timeout: float, coordinator: str) -> Any:
    end = time.monotonic() + timeout + _GRACE
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                _say(connection, {"process": process, "processes": processes})
                connection.settimeout(max(end - time.monotonic(), 1))
                heard = _hear(connection)
                fault = heard["fault"]
                break
        except (OSError, ValueError, KeyError) as error:
            if time.monotonic() > end - _GRACE:
                raise RuntimeError(
                    f"process {process} of {processes} did not find process 0 at {coordinator} "
                    f"within {timeout:g} s ({error}): is it running, and is the address right?"
                ) from None
            time.sleep(0.1)
    if fault:
        raise RuntimeError(fault)
    return heard.get("word")


def _say(connection: socket.socket, what: dict[str, Any]) -> None:
    connection.sendall(json.dumps(what).encode() + b"\n")


def _hear(connection: socket.socket) -> dict[str, Any]:
    return json.loads(read_line(connection, 65536))


def read_line(connection: socket.socket, most: int) -> bytes:
    """A line, its end included, and nothing of what comes after it.

    Args:
        connection: to read from.
        most: bytes it may have.

    Raises:
        ValueError: the other side hung up, or the line has no end.
    """
    line = b""
    while not line.endswith(b"\n"):
        more = connection.recv(1)
        if not more or len(line) > most:
            raise ValueError("the other side hung up")
        line += more
    return line
