"""Cluster: a lab as its user holds it."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnnkit.lab import environment, jobs, units

PORT = 20000  # where the first job's process 0 listens; nothing else does, in a network of its own

# Not -m: the keeper imports this very package, wherever the current folder is.
KEEPER = (
    "import sys; sys.path.insert(0, sys.argv[1]); from cnnkit.lab.keeper import main; main(*sys.argv[2:])"
)

ERRORS = {
    e.__name__: e for e in (PermissionError, FileNotFoundError, NotADirectoryError, OSError, ValueError)
}


class Cluster:
    """A cheap cluster on one machine: nodes with a network of their own, joined by shaped links.

    Each node is a network namespace with a host name; a bridge without uplink joins them. Everything hangs on
    one process that ends with this one, so nothing has to be cleaned up, not even after kill -9.

    Args:
        nodes: how many.
        rate: of each node's link, in each direction, as tc writes it (``"100mbit"``); None for no limit.
        delay: the time from any node to any other, e.g. ``"1ms"``; needs the kernel's sch_netem.
        workers_per_node: devices that a node's process drives: GPUs, or virtual CPU devices.
        pin: share this process's cores out among the nodes.
        gpus: use the machine's GPUs, `workers_per_node` a node, their traffic forced onto the links. None: if
            there are any.
        folder: keeps the nodes' logs, ``node0.log`` and so on, of a second job ``node0-2.log``; without it
            they are removed at the end.

    Raises:
        OSError: this system cannot do it; the text says what is missing.
        ImportError: pyroute2 is missing.
        ValueError: a rate, a delay, or a number of nodes or GPUs makes no sense.
    """

    def __init__(
        self,
        nodes: int = 2,
        rate: str | float | None = None,
        *,
        delay: str | float = 0.0,
        workers_per_node: int = 1,
        pin: bool = False,
        gpus: bool | None = None,
        folder: str | Path | None = None,
    ) -> None:
        require()
        if not 1 <= nodes <= 250:
            raise ValueError(f"nodes is {nodes}: expected between 1 and 250")
        if workers_per_node < 1:
            raise ValueError(f"workers_per_node is {workers_per_node}: expected at least 1")
        found = environment.gpus() if gpus is not False else []
        if gpus and not found:
            raise ValueError(
                "gpus=True, but this process sees no GPU (CUDA_VISIBLE_DEVICES, JAX_PLATFORMS, /dev)"
            )
        self.names = [f"node{i}" for i in range(nodes)]
        self._gpus = environment.deal_gpus(nodes, workers_per_node, found)
        self._cores = environment.share(environment.own_cores(), nodes) if pin else [[] for _ in range(nodes)]
        self._workers = workers_per_node
        self._jobs: list[ClusterJob] = []
        self._replies: dict[int, dict[str, Any]] = {}
        self._asked = 0
        self._rest = b""
        self._lock = threading.RLock()
        self._gone: str | None = None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            folder = Path(folder).resolve()
        settings = {
            "nodes": nodes,
            "rate": None if rate is None else units.bits(rate),
            "delay": units.seconds(delay),
            "folder": None if folder is None else str(folder),
        }
        ready = self._start(settings)
        self.folder = Path(ready["folder"])
        self.unprivileged: bool = ready["unprivileged"]

    def _start(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        self._channel, other = socket.socketpair()
        home = str(Path(__file__).parents[2])
        arguments = [home, str(other.fileno()), str(os.getpid()), json.dumps(settings)]
        with other:
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-c", KEEPER, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,  # the terminal's interrupt is ours to pass on
            )
        try:
            return self._reply(-1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.names)

    def close(self) -> None:
        """End every process in the lab, and the lab; harmless when it has ended."""
        # Not close alone: a forked child of this process may hold a copy.
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._keeper.wait()
        self._end("the lab is closed")

    def popen(
        self,
        command: Sequence[str],
        *,
        nodes: Sequence[int] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> "ClusterJob":
        """Start the command on every node, and return without waiting.

        Args:
            command: the program and its arguments; ``python`` is this interpreter.
            nodes: start it on these alone, for instance again on a node whose process was killed. Each keeps
                its place in the job: process i of as many as there are nodes.
            env: further variables.
            cwd: where it runs; this process's folder.
        """
        chosen = range(len(self)) if nodes is None else [self._node(i) for i in nodes]
        if not command:
            raise ValueError("no command: expected a program and its arguments, e.g. ['python', 'train.py']")
        job = ClusterJob(self, len(self._jobs), list(chosen))
        # A new job's processes must not find an older one's coordinator.
        began = sum(0 in job.nodes for job in self._jobs) + (0 in job.nodes)
        coordinator = f"node0:{PORT + max(began, 1)}"
        self._jobs.append(job)
        for i in job.nodes:
            more = dict(env or {})
            if self._gpus[i]:
                more = {**environment.OVER_THE_LINK, "NCCL_SOCKET_IFNAME": "=link", **more}
            place = environment.process(
                i,
                len(self),
                coordinator,
                devices=self._workers,
                gpus=self._gpus[i],
                cores=self._cores[i],
                more=more,
            )
            self._ask(
                "start",
                job=job.number,
                node=i,
                argv=[str(part) for part in command],
                env=place,
                cwd=str(Path(cwd or ".").resolve()),
                log=str(job.logs[self.names[i]]),
                cores=self._cores[i],
            )
        return job

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        show: bool = True,
        keep_going: bool = False,
    ) -> "ClusterJob":
        """Run the command on every node to its end, showing what the nodes write.

        Args:
            command: the program and its arguments; ``python`` is this interpreter.
            env: further variables.
            cwd: where it runs; this process's folder.
            show: print the nodes' lines as they come.
            keep_going: let the other nodes run on when one fails; otherwise they are ended.

        Raises:
            JobFailed: a node's process failed; the text has the first one's last lines.
        """
        job = self.popen(command, env=env, cwd=cwd)
        job.follow(show=show, keep_going=keep_going)
        job.check()
        return job

    def set_rate(self, rate: str | float | None, node: int | None = None) -> None:
        """Change the rate of one node's link, or of all, while jobs run; None for no limit."""
        value = None if rate is None else units.bits(rate)
        for i in range(len(self)) if node is None else [self._node(node)]:
            self._ask("shape", node=i, rate=value)

    def cut(self, node: int) -> None:
        """Pull a node's cable: what is sent to it or by it is lost."""
        self._ask("plug", node=self._node(node), state="down")

    def mend(self, node: int) -> None:
        """Put a node's cable back."""
        self._ask("plug", node=self._node(node), state="up")

    def freeze(self, node: int) -> None:
        """Stop a node's processes (SIGSTOP), as if the machine hung: its connections stay open."""
        self._ask("signal", node=self._node(node), number=signal.SIGSTOP)

    def thaw(self, node: int) -> None:
        """Let a frozen node's processes go on."""
        self._ask("signal", node=self._node(node), number=signal.SIGCONT)

    def kill(self, node: int) -> None:
        """Kill a node's processes, as if the machine lost power, except that its connections are closed."""
        self._ask("signal", node=self._node(node), number=signal.SIGKILL)

    def shapers(self, node: int) -> dict[str, list[dict[str, Any]]]:
        """What the kernel says shapes a node's link: at the ``node``'s end and at the ``bridge``'s."""
        return self._ask("shapers", node=self._node(node))

    def _node(self, node: int) -> int:
        if not 0 <= node < len(self):
            raise ValueError(f"no node {node}: this lab has nodes 0 to {len(self) - 1}")
        return node

    def _ask(self, do: str, **arguments: Any) -> Any:
        with self._lock:
            number, self._asked = self._asked, self._asked + 1
            try:
                self._channel.sendall(json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n")
            except OSError:
                self._end("the lab's keeper has ended")
            return self._reply(number)

    def _reply(self, number: int) -> Any:
        while number not in self._replies:
            self._receive(None)
        reply = self._replies.pop(number)
        if "error" in reply:
            raise ERRORS.get(reply["kind"], RuntimeError)(reply["error"])
        return reply["value"]

    def _receive(self, timeout: float | None) -> None:
        """Take in what the keeper sends within that time: a reply, or news of ended processes."""
        with self._lock:
            if self._gone:
                raise ConnectionError(f"{self._gone}; its processes were killed. Start a new one")
            self._channel.settimeout(timeout)
            try:
                data = self._channel.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return
            finally:
                self._channel.settimeout(None)
            if not data:
                last = self._replies.get(-1, {}).get("error")
                self._end("the lab's keeper has ended" + (f" ({last})" if last else ""))
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            ended = message["ended"]
            self._jobs[ended["job"]]._end(self.names[ended["node"]], ended["status"])
        else:
            self._replies[message["id"]] = message

    def _end(self, why: str) -> None:
        """Note that the lab is gone; what ran in it was killed."""
        self._gone = self._gone or why
        for job in self._jobs:
            for name, status in job.statuses.items():
                if status is None:
                    job._end(name, -signal.SIGKILL)


class ClusterJob(jobs.Job):
    """One command on a cluster's nodes."""

    def __init__(self, cluster: Cluster, number: int, nodes: Sequence[int]) -> None:
        names = [cluster.names[i] for i in nodes]
        nth = f"-{number + 1}" if number else ""
        super().__init__(names, [cluster.folder / f"{name}{nth}.log" for name in names])
        self.cluster, self.number, self.nodes = cluster, number, list(nodes)

    def poll(self, timeout: float = 0.0) -> dict[str, int | None]:
        if self.running:
            self.cluster._receive(timeout)
        return self.statuses

    def signal(self, number: int, name: str | None = None) -> None:
        for i, own in zip(self.nodes, self.names):
            if self.statuses[own] is None and name in (None, own):
                self.cluster._ask("signal", node=i, number=number)


def require() -> None:
    """Raise unless this machine can hold a lab, as far as can be seen without trying.

    Raises:
        OSError: not Linux.
        ImportError: pyroute2 is missing.
    """
    if sys.platform != "linux":
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        raise OSError(
            f"a lab is made of Linux network namespaces, which {system} does not have. Use a Linux machine, a "
            "virtual one or WSL 2, or cnnkit launch for processes on this machine without shaped links"
        )
    if importlib.util.find_spec("pyroute2") is None:
        raise ImportError(
            "a lab sets its links up through pyroute2, which is missing: pip install -e '.[lab]' in the folder "
            "of cnnkit's repository"
        )


def cluster(nodes: int = 2, rate: str | float | None = None, **settings: Any) -> Cluster:
    """A `Cluster` with these settings, for ``with cluster(nodes=4, rate="1gbit") as c: c.run([...])``."""
    return Cluster(nodes, rate, **settings)
