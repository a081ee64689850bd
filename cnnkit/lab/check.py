"""Does the lab keep its word: plain-socket traffic between nodes, at what rate and with what round trip.

Run as a program inside every node of a lab, it sends to the next node while it receives from the one before.
"""

import json
import os
import socket
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cnnkit.lab.cluster import Cluster

PORT = 19999
WARM_UP = 0.3  # seconds in which TCP finds the rate


def measure(cluster: "Cluster", seconds: float = 2.0) -> list[dict[str, float]]:
    """What each node receives from the one before it, all sending at once.

    Args:
        cluster: of at least two nodes.
        seconds: how long to send.

    Returns:
        One dict a node: ``rate``, payload in bits a second; ``round_trip``, the median in seconds.

    Raises:
        ValueError: a single node has nobody to talk to.
    """
    if len(cluster) < 2:
        raise ValueError("measuring the links needs at least two nodes")
    job = cluster.run(["python", __file__, str(seconds)], show=False)
    return [json.loads(job.tail(name, 1)) for name in job.names]


def main(seconds: float) -> dict[str, Any]:
    """One node's part: ping the next node, then send to it and receive from the one before."""
    me, count = int(os.environ["CNNKIT_PROCESS"]), int(os.environ["CNNKIT_PROCESSES"])
    with socket.create_server(("", PORT)) as server:
        going = _connect(f"node{(me + 1) % count}")
        coming, _ = server.accept()
    with going, coming:
        for end in (going, coming):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo = threading.Thread(target=_echo, args=(coming,))
        echo.start()
        trips = [_ping(going) for _ in range(21)]
        echo.join()
        send = threading.Thread(target=_send, args=(going, seconds))
        send.start()
        rate = _receive(coming)
        send.join()
    return {"rate": rate, "round_trip": statistics.median(trips)}


def _connect(host: str) -> socket.socket:
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, PORT), timeout=30)
        except OSError:
            # The other node's program may not listen yet.
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _echo(end: socket.socket) -> None:
    for _ in range(21):
        end.sendall(end.recv(1))


def _ping(end: socket.socket) -> float:
    start = time.perf_counter()
    end.sendall(b"p")
    end.recv(1)
    return time.perf_counter() - start


def _send(end: socket.socket, seconds: float) -> None:
    block, stop = bytes(1 << 17), time.monotonic() + seconds
    while time.monotonic() < stop:
        end.sendall(block)
    end.shutdown(socket.SHUT_WR)


def _receive(end: socket.socket) -> float:
    """Bits a second, from the end of the warm-up to the last byte."""
    block, begin = bytearray(1 << 20), time.monotonic() + WARM_UP
    total, first, last = 0, 0.0, 0.0
    while got := end.recv_into(block):
        last = time.monotonic()
        if first:
            total += got
        elif last > begin:
            first = last
    return 8 * total / (last - first)


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]))))
