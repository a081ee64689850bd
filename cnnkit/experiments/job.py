"""Trainings of several workers, described as plain data and run where there are devices for them.

On GPUs and in a job of several machines they run in this process. On a CPU they run in a job of their own:
one process with a virtual device for each worker, or a process for each, where workers wait and would
block each other's threads.
"""

import contextlib
import io
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cnnkit.names import choose

Case = Mapping[str, Any]
Found = dict[str, Any]

DEFAULTS: dict[str, Any] = {
    "label": "",
    "net": "small",
    "data": "digits",
    "examples": None,
    "batch": 8,
    "epochs": 1,
    "seed": 0,
    "lr": 0.02,
    "mode": "local",
    "fetch": 1,
    "delay": 0,
    "momentum": "keep",
    "exchange": "psum",
    "workers": 1,
    "speeds": None,
    "wait": None,
    "augment": None,
    "windows": None,
    "keep": None,
}
"""What a case may say. ``examples`` repeats the data up to so many; ``wait`` is the seconds that a step lasts
at speed 1, where workers wait; ``windows`` is (n, seconds, warm seconds) of a timing; ``keep`` is the folder of a run that is kept."""


def several(cases: Sequence[Case], workers: int | None, folder: Path, apart: bool = False) -> list[Found]:
    """What was found in each case, one after another.

    Args:
        cases: see `DEFAULTS`; all with the same number of workers.
        workers: how many; None takes all there are in a job of several machines.
        folder: where logs lie.
        apart: a process for each worker, on CPU.

    Raises:
        ValueError: a case says something that is no setting.
    """
    full = whole(cases, workers)
    if _here():
        return here(full)
    from cnnkit.lab.launch import launch

    count = workers or 1
    processes, each = (count, 1) if apart else (1, count)

    def start(command: Sequence[str], logs: Path, env: Mapping[str, str]) -> None:
        launch(command, processes, workers_per_process=each, gpus=False, folder=logs, env=env)

    return elsewhere(full, folder, start)


def whole(cases: Sequence[Case], workers: int | None) -> list[dict[str, Any]]:
    """The cases with every setting.

    Raises:
        ValueError: a case says something that is no setting.
    """
    for case in cases:
        for key in case:
            choose(key, DEFAULTS, "setting of a case")
    return [{**DEFAULTS, **case, "workers": workers} for case in cases]


def unequal(speeds: Sequence[float], wait: float | None) -> dict[str, Any]:
    """How workers of these speeds are emulated here: by waiting on CPU, by real work on GPUs."""
    from cnnkit.lab import environment

    return {"speeds": list(speeds), "wait": None if environment.gpus() else wait}


def _here() -> bool:
    import jax

    from cnnkit.lab import environment

    # Asked in this order, as neither starts a device that the others' processes might want.
    return jax.distributed.is_initialized() or bool(environment.gpus())


def elsewhere(cases: Sequence[Case], folder: Path, start: Callable[..., Any]) -> list[Found]:
    """What a job of processes of its own finds in cases that have every setting.

    Args:
        cases: from `whole`.
        folder: for what is asked, what is found, and logs.
        start: ``start(command, logs, env)`` runs the command as the job's processes, to their end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, found = folder / "cases.json", folder / "found.json"
    asked.write_text(json.dumps(cases))
    found.unlink(missing_ok=True)
    command = ["python", "-m", "cnnkit.experiments.job", str(asked.absolute()), str(found.absolute())]
    with contextlib.redirect_stdout(Spoken(sys.stdout)):
        start(command, folder / "logs", {"PYTHONPATH": str(Path(__file__).parents[2])})
    return json.loads(found.read_text())


MARK = "case: "


class Spoken(io.TextIOBase):
    """Lets those lines of a job's output through that tell of a case, without what stands before them."""

    def __init__(self, out: Any) -> None:
        self.out, self._rest = out, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            _, mark, told = line.partition(MARK)
            if mark:
                print(told, file=self.out, flush=True)
        return len(text)

    def flush(self) -> None:
        self.out.flush()


def here(cases: Sequence[Case], say: Callable[[str], None] = print) -> list[Found]:
    """What this process and its job find in cases that have every setting, with a line for each label once all its cases are done."""
    import jax

    out: list[Found] = []
    for label, group in itertools.groupby(cases, key=lambda case: case["label"]):
        found = [timed(case) if case["windows"] else trained(case) for case in group]
        if jax.process_index() == 0:
            say(f"{label}: {summary(found)}")
        out += found
    return out


def summary(found: Sequence[Found]) -> str:
    """What was found in the cases of one label, in a few words."""
    if "images_per_s" in found[0]:
        rate = f"{statistics.median(found[0]['images_per_s']):,.0f} images/s"
        busy = ", ".join(f"{100 * b:.0f}" for b in found[0]["busy"])
        return f"{rate}, busy {busy} %" if len(found[0]["busy"]) > 1 else rate
    last = [one["curve"][-1] for one in found]
    accuracy, seconds = (statistics.median(point[name] for point in last) for name in ("accuracy", "seconds"))
    return (
        f"test {100 * accuracy:.2f} % (median of {len(found)}) after {last[0]['exchanges']} exchanges, "
        f"{seconds:.1f} s of training"
    )


def _run(case: Case, **settings: Any) -> Any:
    from cnnkit.parallel.emulate import emulate
    from cnnkit.train import optim
    from cnnkit.train.run import Run

    speeds, wait = case["speeds"], case["wait"]
    slow = None
    if speeds and wait:
        # A step that takes no time beside its waiting lasts wait / v: (1 / s − 1) · wait with 1 / s = 1 + 1 / v.
        slow = emulate([v / (1 + v) for v in speeds], waits=True, step_seconds=wait)
    elif speeds and min(speeds) < 1:
        slow = emulate(speeds)
    return Run(
        network(case["net"]),
        dataset(case["data"], case["examples"]),
        batch=case["batch"],
        seed=case["seed"],
        optimizer=optim.sgd(case["lr"], momentum=0.9),
        augment=augmentation(case["augment"]),
        workers=case["workers"],
        mode=case["mode"],
        fetch=case["fetch"],
        delay=case["delay"],
        momentum=case["momentum"],
        exchange=case["exchange"],
        folder=case["keep"],
        emulate=slow,
        **settings,
    )


def trained(case: Case) -> Found:
    """Train a case to its end: test accuracy, examples, seconds and exchanges after each epoch."""
    from cnnkit.train.report import Silent

    run = _run(case, epochs=case["epochs"], judge="test", watch=Silent())
    run.fit()
    curve = [
        {
            "examples": row["examples"],
            "seconds": round(row["train_total"], 4),
            "accuracy": row["test_accuracy"],
            "exchanges": row["rounds"],
        }
        for row in run.history
    ]
    return {"label": case["label"], "seed": case["seed"], "curve": curve}


class Windows:
    """Watches a run: notes seconds and examples at its ticks, and stops it when its windows are over.

    Args:
        n: windows, one after another.
        seconds: of each, at least.
        warm: seconds of training before the first; and so many rounds that speeds have been measured.
    """

    ROUNDS = 6

    def __init__(self, n: int, seconds: float, warm: float) -> None:
        self.n, self.seconds, self.warm = n, seconds, warm
        self.marks: list[tuple[float, float, int]] = []

    def begin(self, run: Any) -> None:
        """Nothing yet."""

    def tick(self, run: Any) -> None:
        """Look at the clock."""
        import jax

        now = run.clocks.seconds["train"]
        due = self.marks[-1][0] + self.seconds if self.marks else self.warm
        # A stop takes effect after the next exchange, which brings another tick.
        if len(self.marks) <= self.n and now >= due and (self.marks or run.engine.round >= self.ROUNDS):
            self.marks.append((now, run.epochs_done * len(run.data), len(run.record.rounds())))
            # The others' clocks differ a little; one that is early must not end the first one's last window.
            if len(self.marks) > self.n and jax.process_index() == 0:
                run.stop()

    def row(self, run: Any, row: Any) -> None:
        """Nothing."""

    def end(self, run: Any, why: str) -> None:
        """Nothing."""


def timed(case: Case) -> Found:
    """Time a case: images a second in each window, and each worker's busy fraction over all of them."""
    n, seconds, warm = case["windows"]
    watch = Windows(n, seconds, warm)
    run = _run(case, epochs=100_000, judge=(), watch=watch, checkpoint_every=1e9)
    run.fit()
    marks = watch.marks
    found: Found = {"label": case["label"]}
    found["images_per_s"] = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(marks)]
    rows = run.record.rounds()[marks[0][2] : marks[-1][2]]
    whole = sum(row["seconds"] for row in rows)
    shares = zip(*([(b or 0.0) * row["seconds"] for b in row["busy"]] for row in rows))
    fetched = [list(row["fetch"]) for row in rows]
    found["busy"] = [sum(share) / whole for share in shares] or [1.0]
    found["fetch"] = max(fetched, key=fetched.count) if fetched else [1]
    found["exchange_seconds"] = (rows[-1]["exchange_seconds"] if rows else None) or 0.0
    found["step_seconds"] = rows[-1]["step_seconds"] if rows else []
    found["bytes"] = rows[-1]["bytes"][0] / rows[-1]["rounds"] if rows else 0
    # The part of the time that exchanges take which nothing hides.
    exchanging = found["exchange_seconds"] * sum(row["rounds"] for row in rows) / (whole or 1.0)
    found["exchanging"] = [min(exchanging, 1 - b) for b in found["busy"]]
    return found


def network(name: str) -> Any:
    """A network for ten classes by name; beside those of `cnnkit.nets`, three small ones.

    ``wide`` has a million parameters and little to compute: on digits its exchange is long, its step short.
    """
    from cnnkit import layers, nets

    def small(classes: int) -> Any:
        return layers.serial(
            layers.conv(16, 3, padding="same"), layers.relu(), layers.max_pool(2),
            layers.conv(32, 3, padding="same"), layers.relu(), layers.max_pool(2),
            layers.dense(classes),
        )  # fmt: skip

    def wide(classes: int) -> Any:
        return layers.serial(
            layers.conv(16, 3, padding="same"), layers.relu(), layers.max_pool(2),
            layers.conv(32, 3, padding="same"), layers.relu(),
            layers.dense(2048), layers.relu(), layers.dense(classes),
        )  # fmt: skip

    known = {
        "small": small,
        "wide": wide,
        "linear": lambda classes: layers.serial(layers.dense(classes)),
        **nets.NAMES,
    }
    return choose(name, known, "network")(10)


def dataset(name: str, examples: int | None = None) -> Any:
    """A data set by name, repeated up to so many training examples; ``noise`` is 32×32×3 without a lesson."""
    import numpy as np

    from cnnkit import data

    if name == "noise":
        draw = np.random.default_rng(0)
        images = draw.integers(0, 256, (examples or 10_000, 32, 32, 3), np.uint8)
        labels = draw.integers(0, 10, len(images)).astype(np.int32)
        return data.from_arrays(images, labels, images[:100], labels[:100], name="noise")
    whole = data.load(name)
    if examples is None:
        return whole
    index = np.arange(examples) % len(whole)
    test = whole.test
    repeated = whole.train.images[index], whole.train.labels[index]
    return data.from_arrays(*repeated, test.images, test.labels, name=f"{name} repeated")


def augmentation(name: str | None) -> Any:
    """Augmentation by name: ``crop24`` is CUDA-CNN's for CIFAR-10, flipped crops; ``shift`` moves digits by a pixel."""
    from cnnkit import augment

    known: dict[str, Any] = {
        "crop24": augment.chain(augment.crop(24), augment.flip()),
        "shift": augment.crop(8, pad=1),
        "mnist": augment.chain(augment.rotate(12), augment.scale(12), augment.elastic(3.4)),
    }
    return None if name is None else choose(name, known, "augmentation")


def main(arguments: Sequence[str]) -> None:
    """Run the cases in one file and write what was found into another."""
    from cnnkit.parallel import workers

    workers.join()
    import jax

    asked, into = map(Path, arguments)
    found = here(json.loads(asked.read_text()), lambda text: print(MARK + text, flush=True))
    if jax.process_index() == 0:
        into.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
