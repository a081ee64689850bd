"""Trials: trainings of one recipe, on a part of the examples for choices, or on all of them for the test."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cnnkit.data import Dataset, Split
from cnnkit.data.dataset import stratified
from cnnkit.experiments.base import Row, row
from cnnkit.experiments.virtual import Turns
from cnnkit.layers import Layer, rebuild
from cnnkit.names import choose
from cnnkit.record.folder import write_whole
from cnnkit.train import optim
from cnnkit.train.clock import Clocks
from cnnkit.train.flock import Flock, Trained
from cnnkit.train.judges import PLAIN, Seer
from cnnkit.train.optim import Optimizer
from cnnkit.train.report import Silent
from cnnkit.train.run import Run
from cnnkit.train.schedule import Schedule
from cnnkit.train.task import init_key

UNIT_MUON: dict[str, Any] = {
    "optimizer": "muon",
    "momentum": 0.6,
    "steps": 3,
    "unit": True,
    "rest": 2.0,
    "rest_momentum": 0.85,
}
"""A way to train networks with batch-norm, which makes up for filters that keep their lengths."""


class Trial:
    """One recipe, by one program, whichever part of the training set it learns from.

    Args:
        data: the whole set.
        hold: how many training examples are held out for choices.
        net: the network.
        looks: views in which it is judged.
        seer: of a trial whose networks are judged by the same program.
        settings: of a run: batch, optimizer, augment, dtype, smoothing.
    """

    def __init__(
        self,
        data: Dataset,
        hold: int,
        net: Layer,
        *,
        looks: np.ndarray = PLAIN,
        seer: Seer | None = None,
        **settings: Any,
    ) -> None:
        run = Run(net, data, watch=Silent(), **settings)
        self.data, self.looks, self.task, self.clocks = data, looks, run.task, Clocks()
        self.flock = Flock(run.task, data.train, run.batch, clocks=self.clocks)
        self.seer = seer or Seer(run.task, self.clocks)
        chosen = stratified(data.train.labels, hold, 0)
        rest = np.ones(len(data), bool)
        rest[chosen] = False
        self.rest = np.flatnonzero(rest)
        self.held = Split(data.train.images[chosen], data.train.labels[chosen])

    def held_out(
        self, seeds: Sequence[int], epochs: int, optimizer: Optimizer | None = None
    ) -> tuple[list[Trained], np.ndarray]:
        """Trained without the held-out examples: the models, and what they say of these, [seeds, V, N, classes]."""
        trained = self.flock.train(seeds, epochs, part=self.rest, optimizer=optimizer)
        return trained, self.ask(trained, self.held.images)

    def tested(
        self, seeds: Sequence[int], epochs: int, optimizer: Optimizer | None = None
    ) -> tuple[list[Trained], np.ndarray]:
        """Trained on every training example: the models, and what they say of the test set."""
        trained = self.flock.train(seeds, epochs, optimizer=optimizer)
        return trained, self.ask(trained, self.data.test.images)

    def ask(self, trained: Sequence[Trained], images: np.ndarray) -> np.ndarray:
        """Class probabilities float32 [models, V, N, classes]."""
        return np.stack([self.seer(one.model, images, self.looks) for one in trained])

    def compile_seer(self) -> None:
        """Compile the program that judges."""
        model = self.task.init(init_key(0), self.data.shape)
        self.seer.compile(model, self.data.test.images, self.looks)

    @property
    def seconds(self) -> float:
        """Spent in training so far, without compiling."""
        return self.clocks.seconds["train"]


def optimizer(
    way: Mapping[str, Any], schedule: Schedule, usual: Mapping[str, Any] | None = None
) -> Optimizer:
    """The optimizer of a way to train.

    Args:
        way: its name in `cnnkit.optim` and what it takes there, among rate, batch, decay and smoothing.
        schedule: of the rate.
        usual: the same for a way that names none.
    """
    told = way if "optimizer" in way else {**(usual or {}), **way}
    more = {key: told[key] for key in told if key not in ("optimizer", "lr", "batch", "decay", "smoothing")}
    kinds: dict[str, Any] = {"sgd": optim.sgd, "muon": optim.muon}
    return choose(told["optimizer"], kinds, "optimizer")(schedule, **more)


def by_workers(
    trial: Trial, name: str, workers: Mapping[str, Any], epochs: int, optimizer: Optimizer | None = None
) -> Row:
    """A trial's network through workers that take local steps, by turns on this device.

    Args:
        trial: of the network.
        name: what the row calls it.
        workers: ``count``, ``fetch`` and ``seeds``; each worker's batch is the trial's divided by count.
        epochs: how often the training set is gone through.
        optimizer: whose rates are taken in place of the trial's.
    """
    count, fetch = workers["count"], workers["fetch"]
    batch = trial.flock.batch // count
    turns = Turns(trial.task, trial.data.train, batch, count, fetch)
    made = [turns.train(1000 + seed, epochs, optimizer) for seed in range(workers["seeds"])]
    test = trial.data.test
    values = [right(trial.seer(model, test.images)[0], test.labels) for model, _ in made]
    more = {"exchanges": made[0][1][-1]["exchanges"], "batch": batch, "epochs": epochs}
    return figures(f"{name}, {count} workers, {fetch}", "accuracy", values, "%", **more)


def compile_all(trials: Sequence[Trial]) -> float:
    """Compile the trials' programs; the seconds that it took.

    Programs of different networks are compiled beside one another. Those of one network follow the first of them:
    what was measured for its convolutions then holds for theirs, where it would have been measured for each.
    """
    begin = time.perf_counter()
    by_net: dict[str, dict[int, Callable[[], None]]] = {}
    for trial in trials:
        programs = by_net.setdefault(json.dumps(trial.task.net.describe(), sort_keys=True), {})
        programs[id(trial.flock)] = trial.flock.compile
        programs[id(trial.seer)] = trial.compile_seer
    each = [list(programs.values()) for programs in by_net.values()]
    with ThreadPoolExecutor(8) as pool:
        for part in (slice(2), slice(2, None)):  # a network's first training and its judge, then all others
            for done in [pool.submit(program) for programs in each for program in programs[part]]:
                done.result()
    return time.perf_counter() - begin


def right(chances: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy in percent of probabilities [N, classes]."""
    return float(100 * (chances.argmax(-1) == labels).mean())


def surprise(chances: np.ndarray, labels: np.ndarray) -> float:
    """Mean of −log of what was said of the true class, no less than 10⁻⁶."""
    return float(-np.log(np.maximum(chances[np.arange(len(labels)), labels], 1e-6)).mean())


def figures(case: str, figure: str, values: Sequence[float], unit: str, **more: Any) -> Row:
    """A row with the mean and every value, beside what rows have."""
    kept = [round(float(value), 4) for value in values]
    return row(case, figure, kept, unit, mean=round(statistics.fmean(kept), 4), samples=kept, **more)


def best(rows: Sequence[Row], beside: str = "") -> Row:
    """The row with the highest mean, and of equal ones that with the lowest value beside; marked as chosen.

    >>> best([{"mean": 1.0, "loss": 3}, {"mean": 1.0, "loss": 2}, {"mean": 0.5, "loss": 1}], "loss")["loss"]
    2
    """
    found = max(rows, key=lambda r: (r["mean"], -r.get(beside, 0)))
    for r in rows:
        r["chosen"] = r is found
    return found


def decayed(net: Layer, strength: float | None) -> Layer:
    """The network with one L2 penalty on all its kernels and matrices; as it is for None.

    >>> from cnnkit.layers import dense, relu, serial
    >>> decayed(serial(dense(4), relu()), 1e-3).parts[0].decay
    0.001
    """

    def changed(description: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(description)
        if made["kind"] in ("conv", "dense"):
            made["decay"] = strength
        if "parts" in made:
            made["parts"] = [changed(part) for part in made["parts"]]
        return made

    return net if strength is None else rebuild(changed(net.describe()))


class Book:
    """Rows as they come, on disk before the next one is worked for.

    Args:
        folder: where ``rows.json`` lies.
        say: is told of each row.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] | None = None) -> None:
        self.path, self.rows, self._say = Path(folder) / "rows.json", [], say  # type: ignore[var-annotated]
        self._begin = time.perf_counter()

    def add(self, *rows: Row) -> None:
        """Keep rows."""
        self.rows += rows
        self.write()
        if self._say is not None and jax.process_index() == 0:
            for r in rows:
                self._say(
                    f"{self.seconds:6.1f} s  {r['case']}, {r['figure']}: {r['value']:g} ± {r['spread']:.2g} (n = {r['n']})"
                )

    def write(self) -> None:
        """All rows so far, also those that were changed."""
        if jax.process_index() == 0:
            write_whole(self.path, (json.dumps(self.rows, ensure_ascii=False) + "\n").encode())

    @property
    def seconds(self) -> float:
        """Since it was opened."""
        return time.perf_counter() - self._begin


def chain(strengths: Mapping[str, float]) -> Any:
    """The augmentation of these strengths, as one; None where there are none.

    Args:
        strengths: any of percent (scale), degrees (rotate), pixels (translate), elastic; crop and pad (pixels),
            flip (0 or 1), cutout (pixels).
    """
    from cnnkit import augment

    makers: dict[str, Callable[..., Any]] = {
        "percent": augment.scale,
        "degrees": augment.rotate,
        "pixels": augment.translate,
        "elastic": augment.elastic,
        "crop": lambda size: augment.crop(int(size), pad=int(strengths.get("pad", 0))),
        "pad": lambda size: None,
        "flip": lambda on: augment.flip(),
        "cutout": lambda size: augment.cutout(int(size)),
    }
    parts = [choose(key, makers, "augmentation")(value) for key, value in strengths.items() if value]
    parts = [part for part in parts if part is not None]
    return augment.chain(*parts) if parts else None
