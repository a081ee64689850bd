"""launch: a multi-process job over this machine's devices, without shaped links; any system."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cnnkit.lab import environment, jobs, scratch

# Between the two, so that the kernel ends the program with its launcher, also after kill -9.
TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class LaunchJob(jobs.Job):
    """Processes started side by side on this machine."""

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        folder: Path,
        cores: Sequence[Sequence[int]],
    ) -> None:
        names = [f"process{i}" for i in range(len(environments))]
        super().__init__(names, [folder / f"{name}.log" for name in names])
        self._processes: dict[str, subprocess.Popen] = {}
        for name, env, own in zip(names, environments, cores):
            program = shutil.which(command[0], path=env["PATH"])
            if program is None:
                raise FileNotFoundError(f"no program {command[0]!r} on PATH")
            argv = [program, *command[1:]]
            if sys.platform == "linux":
                argv = [sys.executable, "-I", "-S", "-c", TIED, str(os.getpid()), *argv]
            with self.logs[name].open("ab") as out:
                started = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=dict(env),
                    start_new_session=True,  # the terminal's interrupt is ours to pass on
                )
            self._processes[name] = started
            if own:
                os.sched_setaffinity(started.pid, own)

    def poll(self, timeout: float = 0.0) -> dict[str, int | None]:
        end = time.monotonic() + timeout
        while True:
            for name, process in self._processes.items():
                if self.statuses[name] is None and (status := process.poll()) is not None:
                    self._end(name, status)
            if not self.running or time.monotonic() >= end:
                return self.statuses
            time.sleep(0.01)

    def signal(self, number: int, name: str | None = None) -> None:
        for own, process in self._processes.items():
            if self.statuses[own] is None and name in (None, own):
                try:
                    if hasattr(os, "killpg"):
                        os.killpg(process.pid, number)
                    else:
                        process.terminate()
                except ProcessLookupError:
                    pass


def launch(
    command: Sequence[str],
    processes: int | None = None,
    *,
    workers_per_process: int = 1,
    pin: bool = False,
    gpus: bool | None = None,
    folder: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    show: bool = True,
    keep_going: bool = False,
) -> dict[str, int | None]:
    """Run the command as the processes of one job on this machine; returns their exit statuses.

    Args:
        command: the program and its arguments; ``python`` is this interpreter.
        processes: how many; as many as the GPUs allow, if there are any.
        workers_per_process: devices that one process drives: GPUs, or virtual CPU devices.
        pin: share this process's cores out among them (Linux).
        gpus: use GPUs; None: if there are any.
        folder: keeps their logs.
        env: further variables.
        show: print their lines as they come.
        keep_going: let the others run on when one fails.

    Raises:
        ValueError: the number of processes is missing, or does not fit the GPUs.
        FileNotFoundError: no such program.
        JobFailed: a process failed; the text has the first one's last lines.
    """
    found = environment.gpus() if gpus is not False else []
    count = processes or len(found) // workers_per_process
    if count < 1:
        raise ValueError(
            "how many processes? This machine shows no GPU to count: --processes N (processes=N)"
        )
    dealt = environment.deal_gpus(count, workers_per_process, found)
    cores = environment.share(environment.own_cores(), count) if pin else [[] for _ in range(count)]
    coordinator = f"127.0.0.1:{_free_port()}"
    places = [
        environment.process(
            i, count, coordinator, devices=workers_per_process, gpus=dealt[i], cores=cores[i], more=env
        )
        for i in range(count)
    ]
    with scratch.folder(folder) as logs:
        job = LaunchJob(command, places, logs, cores)
        try:
            job.follow(show=show, keep_going=keep_going)
            job.check()
        finally:
            job.kill()
    return job.statuses


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
