"""All that is measured on GPUs, by one command: job after job over the GPUs there are, as many side by side as fit.

    python -m benchmarks.gpus --list                     # the jobs, the GPUs and about the seconds that each takes
    python -m benchmarks.gpus                            # all of them, logs and progress in runs/measured
    python -m benchmarks.gpus core fast94 --seconds 600  # some; after so long what still runs is ended

Trainings that are only to be exact share a GPU, three at a time: one's host and compiler work while another's steps run.
A job that is done is not done again, unless it is named with --again: started anew, this goes on where it was
interrupted. One that fails is told, and the others go on. Each job writes its file under benchmarks/results.
Compiled programs are taken from and left in --cache, where one is given; seconds of compiling then say nothing.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cnnkit.lab import environment
from cnnkit.names import choose

GRACE = 20.0  # seconds to write what was found, for a job that is ended
SHARERS = 3  # jobs on a GPU that may be shared


class Job(NamedTuple):
    """A command that measures.

    Args:
        words: module of benchmarks, and arguments.
        gpus: how many it takes.
        seconds: about how long.
        after: jobs whose results it goes on from.
        shares: whether others may run on its GPU, as nothing in it is timed, or only told as a bound.
    """

    words: str
    gpus: int = 1
    seconds: int = 60
    after: tuple[str, ...] = ()
    shares: bool = False

    @property
    def command(self) -> list[str]:
        """As it is started."""
        module, *arguments = shlex.split(self.words)
        return [sys.executable, "-m", f"benchmarks.{module}", *arguments]


class Running(NamedTuple):
    """A job at work: its process, its GPUs, and the time by the clock when it began."""

    process: subprocess.Popen
    job: Job
    gpus: list[str]
    begun: float


# By these a recipe is chosen on held-out images, before it is judged by the test set.
CHOICES = {
    "fast94": ["", "sides=((24,5),(28,2))"],
    "fast96": ["", "epochs=35 sides=((24,9),(28,9))", "epochs=34 sides=((24,6),(28,9))"],
}
FAST = {
    name: f"fast --net {name} --parts 0 --write --n {{}} --variants {shlex.join(variants)}"
    for name, variants in CHOICES.items()
}
# What takes several GPUs first, as it would wait for the others' ends; then what says most, and what shares in a row.
JOBS: dict[str, Job] = {
    "cluster4": Job("cluster --rates 1gbit,10gbit --n 3 --seconds 2 --train cifar10", 4, 600),
    "scaling": Job("scaling", 4, 300),
    "unequal4": Job("rounds unequal --speeds 1,0.5,0.33,0.25", 4, 90),
    "two": Job("link --scaling --processes 2 --n 4", 2, 100),
    "unequal": Job("rounds unequal --speeds 1,0.7", 2, 80),
    "unequal2": Job("rounds unequal --speeds 1,0.5", 2, 80),
    "fast94": Job("accuracy_time --nets fast94 --n 50", 1, 110),
    "first": Job("accuracy_time --first lenet fast94", 1, 60),
    "fast96": Job("accuracy_time --nets fast96 --n 10", 1, 150),
    "core": Job("core --n 5 --together", 1, 480),
    "trace": Job("trace vgg16@256 nin_cifar10@512 fast94", 1, 120),
    "cifar10": Job("accuracy cifar10 --beside", 1, 560, shares=True),
    "mnist": Job("accuracy mnist --beside", 1, 560, shares=True),
    "mnist_workers": Job("accuracy mnist --workers 3", 1, 80, ("mnist",), shares=True),
    "nin_workers": Job("accuracy cifar10 --workers 3 --case nin_cifar10", 1, 200, ("cifar10",), shares=True),
    "fast94_choices": Job(FAST["fast94"].format(16), 1, 120, shares=True),
    "fast96_choices": Job(FAST["fast96"].format(4), 1, 400, shares=True),
    "link": Job("link --rate 1gbit", 2, 240),
    "cluster": Job('cluster --rates 1gbit --policies "sync,every(8),hide"', 2, 240),
    "layers": Job("layers", 1, 300),
    "stream": Job("stream --real --batch 128 --images 1024 --repeats 3 --name stream_gpu", 1, 120),
    "monitor": Job("monitor --samples 20 --gpus 1", 1, 40),
}


class Measured:
    """Jobs on GPUs: what waits, what runs where, what is done.

    Args:
        jobs: by name, in the order in which they are wanted.
        gpus: as CUDA numbers or UUIDs.
        folder: for logs, and for what is known of jobs that are done.
        env: further variables of each job.
    """

    def __init__(
        self, jobs: Mapping[str, Job], gpus: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.env = folder, dict(env or {})
        folder.mkdir(parents=True, exist_ok=True)
        self.gpus = list(gpus)
        self.waiting = {name: job for name, job in jobs.items() if not self.done(name)}
        self.running: dict[str, Running] = {}
        self.ended: dict[str, str] = {}

    def done(self, name: str) -> bool:
        """Whether a job has come to its end, now or before."""
        return self._note(name).exists()

    def forget(self, name: str) -> None:
        """Do a job again."""
        self._note(name).unlink(missing_ok=True)

    def run(self, seconds: float = float("inf"), poll: float = 0.2) -> dict[str, str]:
        """All jobs, or what can be done in so many seconds.

        Returns:
            how each one ended that did not come to its end before.
        """
        end = time.monotonic() + seconds
        try:
            while (self._start() or self.running) and time.monotonic() < end:
                time.sleep(poll)
                self._look()
        finally:
            self._stop()
        for name in self.waiting:
            self._tell(name, "not begun: no time was left")
        return self.ended

    def _start(self) -> bool:
        """Start what can be; whether anything was."""
        before = len(self.running)
        for name, job in list(self.waiting.items()):
            if job.gpus > len(self.gpus):
                self._leave(name, f"left out: it takes {job.gpus} GPUs, and there are {len(self.gpus)}")
            elif lost := [other for other in job.after if other in self.ended and not self.done(other)]:
                self._leave(name, f"left out: it goes on from {' and '.join(lost)}")
            elif any(other in self.waiting or other in self.running for other in job.after):
                continue
            elif (gpus := self._room(job)) is None:
                break  # those behind it would take the GPUs that it waits for
            else:
                self._begin(name, job, gpus)
        return len(self.running) > before

    def _room(self, job: Job) -> list[str] | None:
        """GPUs for a job; None where it has to wait."""
        shared = Counter(each.gpus[0] for each in self.running.values() if each.job.shares)
        used = {gpu for each in self.running.values() for gpu in each.gpus}
        room = [gpu for gpu in self.gpus if gpu not in used]
        if job.shares:
            room = [gpu for gpu, many in shared.items() if many < SHARERS] + room
        return room[: job.gpus] if len(room) >= job.gpus else None

    def _begin(self, name: str, job: Job, gpus: list[str]) -> None:
        env = os.environ | self.env | {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "PYTHONUNBUFFERED": "1"}
        env |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if job.shares else {}
        with (self.folder / f"{name}.log").open("ab") as log:
            # The terminal's interrupt is ours to hand on.
            started = subprocess.Popen(
                job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )
        del self.waiting[name]
        self.running[name] = Running(started, job, gpus, time.monotonic())
        print(f"{name}: begun on GPU {', '.join(gpus)}, about {job.seconds} s", flush=True)

    def _look(self) -> None:
        for name, status, took in self._over():
            if status:
                self._tell(name, f"failed after {took:.0f} s with status {status}: {self._last_line(name)}")
            else:
                self._note(name).write_text(json.dumps({"seconds": round(took, 1)}))
                self._tell(name, f"done in {took:.0f} s")

    def _over(self) -> Iterator[tuple[str, int, float]]:
        """Name, status and seconds of jobs that have ended since; their GPUs are free again."""
        for name, each in list(self.running.items()):
            if (status := each.process.poll()) is not None:
                del self.running[name]
                yield name, status, time.monotonic() - each.begun

    def _stop(self) -> None:
        """End what runs as Ctrl-C does, so that it writes what it has found; then without asking."""
        self._look()  # for what has ended by itself
        for number, patience in ((signal.SIGINT, GRACE), (signal.SIGKILL, 5.0)):
            for each in self.running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.process.pid, number)
            end = time.monotonic() + patience
            while self.running and time.monotonic() < end:
                for name, _, took in self._over():
                    self._tell(name, f"ended after {took:.0f} s, when the time was over")
                time.sleep(0.05)

    def _leave(self, name: str, why: str) -> None:
        del self.waiting[name]
        self._tell(name, why)

    def _tell(self, name: str, how: str) -> None:
        self.ended[name] = how
        print(f"{name}: {how}", flush=True)

    def _note(self, name: str) -> Path:
        return self.folder / f"{name}.done"

    def _last_line(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or list what would be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("jobs", nargs="*", help="some of them, in the order in which they are wanted")
    parser.add_argument("--list", action="store_true", help="say what there is, and measure nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all together")
    parser.add_argument("--again", nargs="*", default=[], metavar="JOB", help="do these though they are done")
    parser.add_argument("--folder", type=Path, default=Path("runs/measured"), help="of logs and progress")
    parser.add_argument("--cache", type=Path, help="folder of compiled programs")
    options = parser.parse_args(argv)
    try:
        jobs: dict[str, Any] = {name: choose(name, JOBS, "job") for name in options.jobs or JOBS}
        again = {name: choose(name, JOBS, "job") for name in options.again}
    except ValueError as wrong:
        parser.error(str(wrong))
    if options.list:
        for name, job in jobs.items():
            print(
                f"{name:<14} {job.gpus} GPU{'s' * (job.gpus > 1):<1} {job.seconds:>4} s  benchmarks.{job.words}"
            )
        return 0
    gpus = environment.gpus()
    if not gpus:
        parser.error("no GPU is seen here (CUDA_VISIBLE_DEVICES, JAX_PLATFORMS); --list shows what needs one")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(options.cache.absolute())} if options.cache else {}
    for name in again:
        Measured({}, [], options.folder).forget(name)
    ended = Measured(jobs, gpus, options.folder, cache).run(options.seconds)
    return int(any(how.startswith(("failed", "ended", "not begun")) for how in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
