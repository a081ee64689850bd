"""The process that holds a lab: its namespaces, links and nodes' processes live no longer than it does.

It runs in an interpreter of its own, because unshare and fork are unsafe beside JAX's threads. Two processes:
the keeper waits for its owner's end and for the other; the other is process 1 of the lab's process namespace,
so that the kernel kills every process in the lab when it ends, for whatever reason.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from cnnkit.lab import kernel, scratch


def main(channel_fd: str, owner_pid: str, settings_json: str) -> None:
    """Hold one lab, until the channel closes or the owner ends.

    Args:
        channel_fd: one end of a socket pair; the owner holds the other.
        owner_pid: the process that asked for the lab, and started this one.
        settings_json: ``nodes``, ``rate`` (bits a second or null), ``delay`` (seconds), ``folder`` (or null).
    """
    channel, owner = socket.socket(fileno=int(channel_fd)), int(owner_pid)
    settings = json.loads(settings_json)
    try:
        watched = kernel.pidfd_open(owner)
    except ProcessLookupError:
        return
    if os.getppid() != owner:
        return
    try:
        with scratch.folder(settings["folder"]) as folder:
            unprivileged = kernel.isolate()
            inner = os.fork()
            if inner == 0:
                try:
                    kernel.die_with_parent(signal.SIGKILL)
                    Lab(channel, settings, folder, unprivileged).serve()
                except BaseException as error:
                    _send(channel, id=-1, **_words(error))
                os._exit(0)
            channel.close()
            _wait(inner, watched)
    except OSError as error:
        _send(channel, id=-1, **_words(error))


def _wait(inner: int, owner: int) -> None:
    """Until the inner process ends; it is killed if the owner ends first."""
    ended = kernel.pidfd_open(inner)
    waiting = select.poll()
    for fd in (ended, owner):
        waiting.register(fd, select.POLLIN)
    if any(fd == owner for fd, _ in waiting.poll()):
        os.kill(inner, signal.SIGKILL)
    os.waitpid(inner, 0)


def _send(channel: socket.socket, **message: Any) -> None:
    # An error means that the owner is gone, and with it the reader.
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(message).encode() + b"\n")


def _words(error: BaseException) -> dict[str, str]:
    """An error as it travels to the owner, which raises it there."""
    text = str(error) or repr(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {error.filename!r}" if error.filename else "")
    return {"error": text, "kind": type(error).__name__}


class Lab:
    """Process 1: makes the links, then does what the channel asks, one JSON object a line."""

    def __init__(
        self, channel: socket.socket, settings: dict[str, Any], folder: Path, unprivileged: bool
    ) -> None:
        from cnnkit.lab import links

        self.channel = channel
        # Each node's namespaces and sockets are held open here.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        count = settings["nodes"]
        names = "".join(f"{links.address(i)} node{i}\n" for i in range(count))
        kernel.own_hosts(f"127.0.0.1 localhost\n{names}")
        self.links = links.Links(count, settings["rate"], settings["delay"])
        self.running: dict[int, tuple[int, int, subprocess.Popen]] = {}
        _send(channel, id=-1, value={"folder": str(folder), "unprivileged": unprivileged})

    def serve(self) -> None:
        """Answer requests and report ended processes until the owner closes the channel."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        waiting = select.poll()
        waiting.register(self.channel, select.POLLIN)
        waiting.register(woken, select.POLLIN)
        rest = b""
        while True:
            ready = {fd for fd, _ in waiting.poll()}
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if self.channel.fileno() in ready:
                data = self.channel.recv(1 << 16)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        number, do = request.pop("id"), request.pop("do")
        try:
            _send(self.channel, id=number, value=getattr(self, f"do_{do}")(**request))
        except Exception as error:
            _send(self.channel, id=number, **_words(error))

    def _reap(self) -> None:
        """Report the nodes' processes that ended; as process 1, also collect everyone's orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.running:
                job, node, process = self.running.pop(pid)
                process.returncode = os.waitstatus_to_exitcode(status)
                _send(self.channel, ended={"job": job, "node": node, "status": process.returncode})

    def do_start(
        self, job: int, node: int, argv: list[str], env: dict[str, str], cwd: str, log: str, cores: list[int]
    ) -> None:
        """Start one process in a node, its output going to the log."""
        at = self.links.nodes[node]

        def enter() -> None:
            kernel.setns(at.net)
            kernel.setns(at.uts)
            if cores:
                os.sched_setaffinity(0, cores)

        with open(log, "ab") as out:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=enter,
            )
        self.running[process.pid] = (job, node, process)

    def do_signal(self, node: int, number: int) -> None:
        """Send every process in a node the signal; again, as long as it finds new ones."""
        told: set[int] = set()
        while fresh := kernel.members(self.links.nodes[node].inode) - told:
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            told |= fresh

    def do_shape(self, node: int, rate: float | None) -> None:
        self.links.shape(node, rate)

    def do_plug(self, node: int, state: str) -> None:
        self.links.plug(node, state)

    def do_shapers(self, node: int) -> dict[str, Any]:
        return self.links.shapers(node)
