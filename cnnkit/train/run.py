"""Run: the object that people hold; it trains, records, resumes, and answers questions."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import cnnkit
from cnnkit import losses
from cnnkit.augment import Augment
from cnnkit.data import Dataset, batches
from cnnkit.layers import Layer, walk
from cnnkit.names import choose
from cnnkit.record import checkpoint
from cnnkit.record.folder import Lock, check_writable, read_config, write_config
from cnnkit.record.rows import Record
from cnnkit.train import report, settings
from cnnkit.train.clock import Clocks
from cnnkit.train.control import Control
from cnnkit.train.evaluate import Judge
from cnnkit.train.optim import Optimizer, sgd
from cnnkit.train.solo import Solo
from cnnkit.train.step import Plan, Source
from cnnkit.train.task import DTYPES, Model, Task, epoch_key, init_key

LOSSES = {"cross_entropy": losses.cross_entropy, "squared_error": losses.squared_error}
TICK = 0.4  # seconds of training between two looks from outside


class Diverged(RuntimeError):
    """A loss was no longer a finite number; the text names where, and what was kept."""


class Run:
    """The training of one network on one data set.

    Args:
        net: the network; its last layer gives one number a class.
        data: what it learns from and is judged by.
        batch: examples that one worker takes in one step.
        epochs: how often the training set is gone through.
        seed: equal seeds give equal numbers, bit for bit on CPU.
        folder: where record, settings and checkpoints lie; a folder that holds this run already is gone on
            from. None keeps the record in memory alone.
        optimizer: from ``cnnkit.optim``; SGD at 0.05 with momentum 0.9 when left out.
        augment: from ``cnnkit.augment``, for training images.
        normalize: subtract the training set's mean and divide by its deviation, by channel.
        loss: ``"cross_entropy"`` or ``"squared_error"``.
        smoothing: label smoothing of the cross-entropy, 0 to below 1.
        dtype: what the network computes in, ``"float32"`` or ``"bfloat16"``; weights stay float32.
        judge: the parts evaluated after an epoch; ``"test"``, and ``"held_out"`` where data has one, when
            left out.
        evaluate_every: epochs between two evaluations; the last epoch is always evaluated.
        checkpoint_every: seconds between two checkpoints; one is also written at every end.
        watch: who is told of the progress; a panel in a notebook, a bar or lines elsewhere when left out.

    Raises:
        ValueError: settings that cannot work, each named, before anything is compiled.
    """

    def __init__(
        self,
        net: Layer,
        data: Dataset,
        *,
        batch: int = 128,
        epochs: int = 10,
        seed: int = 0,
        folder: str | Path | None = None,
        optimizer: Optimizer | None = None,
        augment: Augment | None = None,
        normalize: bool = True,
        loss: str = "cross_entropy",
        smoothing: float = 0.0,
        dtype: str = "float32",
        judge: str | Sequence[str] | None = None,
        evaluate_every: int = 1,
        checkpoint_every: float = 30.0,
        watch: report.Watcher | None = None,
    ) -> None:
        if not isinstance(net, Layer):
            raise TypeError(f"net is {net!r}, not a network; build one with serial(…) or cnnkit.nets")
        self.net, self.data = net, data
        self.batch = settings.batch_size(batch, data)
        self.epochs = settings.count("epochs", epochs)
        self.seed = settings.count("seed", seed, least=0)
        self.evaluate_every = settings.count("evaluate_every", evaluate_every)
        self.checkpoint_every = checkpoint_every
        self.folder = None if folder is None else Path(folder)
        self.optimizer = optimizer or sgd()
        self.augment = augment
        self.judge = _parts(judge, data)
        mean, std = data.statistics() if normalize else (np.float32([0]), np.float32([1]))
        self.task = Task(
            net,
            self.optimizer,
            augment,
            settings.loss_function(loss, smoothing, len(data.classes), LOSSES),
            mean,
            np.maximum(std, np.float32(1e-6)),
            choose(dtype, DTYPES, "dtype"),
        )
        self._check_shapes()
        self.config = {
            "cnnkit": cnnkit.__version__,
            "net": net.describe(),
            "data": {"name": data.name, "fingerprint": data.fingerprint(), "shape": list(data.shape)},
            "batch": batch,
            "epochs": epochs,
            "seed": seed,
            "optimizer": self.optimizer.describe(),
            "augment": augment.describe() if augment else None,
            "normalize": normalize,
            "loss": {"name": loss, "smoothing": smoothing},
            "dtype": dtype,
            "mode": "local",
        }
        self.config = json.loads(json.dumps(self.config))
        self.record = Record()
        self.control = Control()
        self.clocks = Clocks()
        self.watch = watch
        self.phase = "new"
        self.epoch = 0
        self.position = 0
        self._judges: dict[str, Judge] = {}
        self._engine: Solo | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._saved_at = time.monotonic()
        if self.folder is not None:
            self._meet_folder(self.folder)

    # --- what people call -------------------------------------------------------------------------

    def fit(self, epochs: int | None = None, panel: bool | None = None) -> "Run":
        """Train to the last epoch, from wherever the run stands; blocks until done.

        Ctrl-C (Interrupt in a notebook) ends the dispatch in flight, writes a checkpoint and raises
        KeyboardInterrupt; call fit() again to go on.

        Args:
            epochs: a new number of epochs for the whole run.
            panel: False gives the plain form of progress.

        Raises:
            Diverged: a loss was not finite.
            OSError: the folder cannot be written; the training stays in memory.
        """
        self._ready(epochs)
        with self.control.interrupts():
            self._train(self._watcher(panel))
        if self.control.interrupted:
            raise KeyboardInterrupt(f"stopped at epoch {self.epochs_done:.2f}; fit() goes on from there")
        return self

    def start(self, epochs: int | None = None, panel: bool | None = None) -> "Run":
        """Train in the background and return at once; `wait` joins, `stop`, `pause` and `resume` steer."""
        self._ready(epochs)
        watcher = self._watcher(panel)
        self._failure = None

        def work():
            try:
                self._train(watcher)
            except BaseException as error:  # handed over to whoever waits
                self._failure = error

        self._thread = threading.Thread(target=work, name="cnnkit training", daemon=True)
        self._thread.start()
        return self

    def wait(self, timeout: float | None = None) -> "Run":
        """Join a training in the background; what ended it early is raised here.

        Args:
            timeout: seconds; None waits to the end.

        Raises:
            TimeoutError: it still trains.
        """
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"the run still trains after {timeout} s; wait again, or stop() it")
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
        return self

    def stop(self) -> None:
        """End after the dispatch in flight; fit() or start() goes on later."""
        self.control.stop()

    def pause(self) -> None:
        """Hold a run in the background."""
        self.control.pause()

    def resume(self) -> None:
        """Let a paused run go on."""
        self.control.resume()

    def evaluate(self, split: str = "test") -> dict[str, float]:
        """Loss and accuracy over a part, every example exactly once.

        Args:
            split: ``"train"``, ``"held_out"`` or ``"test"``.

        Returns:
            loss, accuracy (0 to 1), errors and examples.
        """
        return self._judged(split)

    def predict(self, images: np.ndarray | str = "test", batch: int = 500) -> np.ndarray:
        """Class probabilities float32 [N, classes] of images uint8 [N, H, W, C], or of a part by its name."""
        if isinstance(images, str):
            images = self.data.split(images).images
        model = self.model
        return Judge.probabilities(self.task, model.params, model.state, images, batch, self.clocks)

    @property
    def model(self) -> Model:
        """Parameters, statistics and optimizer state as they stand, or as drawn before any training."""
        return self._prepared().model()

    @property
    def params(self) -> Any:
        """The network's parameters."""
        return self.model.params

    @property
    def state(self) -> Any:
        """The network's statistics."""
        return self.model.state

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row for each finished epoch."""
        return self.record.epochs()

    @property
    def mini_batches(self) -> int:
        """Mini-batches in an epoch."""
        return -(-len(self.data) // self.batch)

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the part of the one begun."""
        return self.epoch + self.position / self.mini_batches

    @property
    def examples_seen(self) -> int:
        """Training examples gone through."""
        return self.epoch * len(self.data) + min(self.position * self.batch, len(self.data))

    @property
    def training(self) -> bool:
        """Whether it trains now, in the background or not."""
        return self.phase in ("compile", "train", "evaluate", "paused")

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint now, or a copy of the run as it stands into another folder."""
        target = self.folder if folder is None else Path(folder)
        if target is None:
            raise ValueError("this run has no folder; give one: run.save('runs/name')")
        if self.training and self._thread is not None and self._thread.is_alive():
            raise RuntimeError("the run trains in the background; use run.control.save(), or stop() first")
        check_writable(target)
        write_config(target, self.config)
        if folder is not None and target != self.folder:
            copy = Record(target)
            for row in self.record.rows[len(copy) :]:
                copy.append(row)
        return self._write_checkpoint(target)

    @classmethod
    def load(cls, folder: str | Path, net: Layer | None = None, data: Dataset | None = None) -> "Run":
        """The run in a folder, as it was last saved.

        Args:
            folder: a run's folder.
            net: the network, where it has layers of your own making.
            data: the data set, where it is not one that `load` knows by name.

        Raises:
            FileNotFoundError: no run lies there.
        """
        from cnnkit.train.load import rebuild

        return rebuild(cls, Path(folder), net, data)

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ""
        last = self.history[-1:] or [{}]
        judged = [f"{p} {100 * last[0][f'{p}_accuracy']:.2f} %" for p in self.judge if f"{p}_accuracy" in last[0]]
        done = f"epoch {self.epochs_done:.1f} of {self.epochs}"
        return ", ".join([f"Run of {self.data.name}{where}: {self.phase}", done, *judged])

    # --- the training loop ------------------------------------------------------------------------

    def _train(self, watcher: report.Watcher) -> None:
        why = "failed"
        try:
            with self._folder_lock():
                engine = self._prepared()
                engine.stop = self.control.stopping
                watcher.begin(self)
                while self.epoch < self.epochs and not engine.stop:
                    self._one_epoch(engine, watcher)
                why = "done" if self.epoch >= self.epochs else "stopped"
                if self.folder is not None:
                    self._write_checkpoint(self.folder)
        finally:
            self.phase = why
            watcher.end(self, why)

    def _one_epoch(self, engine: Solo, watcher: report.Watcher) -> None:
        engine.begin_epoch(self._plan(self.epoch), self.position == 0, self.epoch, self.epochs)
        while self.position < self.mini_batches:
            self._pause(watcher)
            self.phase = "train"
            stop, save = self.control.stopping, self._checkpoint_due()
            self.position = engine.advance(self.position, TICK, stop, save)
            self._check_finite(engine)
            watcher.tick(self)
            if engine.stop and self.position < self.mini_batches:
                return
            if engine.save:
                self._checkpoint()
        self._finish_epoch(engine, watcher)

    def _finish_epoch(self, engine: Solo, watcher: report.Watcher) -> None:
        sums = engine.sums()
        if round(sums.examples) != len(self.data):
            raise RuntimeError(f"the epoch counted {sums.examples:.0f} of {len(self.data)} examples; please report")
        self.epoch, self.position = self.epoch + 1, 0
        lr, momentum = self._last_rates
        row = {
            "kind": "epoch",
            "epoch": self.epoch,
            "examples": self.examples_seen,
            "train_loss": sums.loss / sums.examples,
            "train_accuracy": sums.correct / sums.examples,
            "lr": float(lr),
            "momentum": float(momentum),
        }
        if self.epoch % self.evaluate_every == 0 or self.epoch >= self.epochs:
            self.phase = "evaluate"
            watcher.tick(self)
            for part in self.judge:
                judged = self._judged(part)
                row |= {f"{part}_loss": judged["loss"], f"{part}_accuracy": judged["accuracy"]}
        row |= self._clock_row()
        self.record.append(row)
        watcher.row(self, row)

    def _clock_row(self) -> dict[str, float]:
        """Seconds of this epoch by clock, and the three clocks' totals."""
        now = dict(self.clocks.seconds)
        last = getattr(self, "_clocks_before", dict.fromkeys(now, 0.0))
        self._clocks_before = now
        return {f"{k}_seconds": now[k] - last[k] for k in now} | {f"{k}_total": now[k] for k in now}

    def _plan(self, epoch: int) -> Plan:
        index, weight = batches(len(self.data), self.batch, self.seed, epoch)
        progress = epoch + np.arange(len(index)) / len(index)
        lr, momentum = self.optimizer.rates(progress, self.epochs)
        lr = lr * np.float32(self.control.lr_scale)
        self._last_rates = lr[-1], momentum[-1]
        return Plan(index, weight, lr, momentum, epoch_key(self.seed, epoch))

    def _pause(self, watcher: report.Watcher) -> None:
        if self.control.paused:
            self.phase = "paused"
            watcher.tick(self)
            self.control.wait_while_paused()

    def _check_finite(self, engine: Solo) -> None:
        bad = engine.bad()
        if bad is None:
            return
        batch, worker = bad
        layer = _first_bad_layer(self.net, engine.model().params)
        place = f"epoch {self.epoch + 1}, mini-batch {batch + 1}, worker {worker}"
        kept = "no folder was given, so no checkpoint was kept"
        facts = checkpoint.read_facts(self.folder) if self.folder else None
        if facts:
            kept = f"the checkpoint at epoch {facts['epoch'] + facts['position'] / self.mini_batches:.2f} is kept in {self.folder}"
        self.record.append({"kind": "event", "event": "diverged", "epoch": self.epoch, "mini_batch": batch, "worker": worker})
        if facts:
            self._restore()
        raise Diverged(
            f"the loss is not a finite number since {place}{layer}; {kept}. Lower the learning rate, warm it up, "
            "or look at the data"
        )

    # --- the folder -------------------------------------------------------------------------------

    def _meet_folder(self, folder: Path) -> None:
        then = read_config(folder)
        if then is not None and (found := settings.differences(then, self.config)):
            raise ValueError(
                f"{folder} holds another run: {'; '.join(found)}. Give the same settings to go on with it, "
                "Run.load() it, or use another folder="
            )
        self.record = Record(folder)
        facts = checkpoint.read_facts(folder)
        if facts is not None:
            self.epoch, self.position = facts["epoch"], facts["position"]
            self.clocks.seconds.update(facts["clocks"])
            self._clocks_before = dict(facts["clocks_before"])

    def _folder_lock(self) -> Any:
        if self.folder is None:
            return _nothing()
        check_writable(self.folder)
        lock = Lock(self.folder)
        write_config(self.folder, self.config)
        return lock

    def _checkpoint_due(self) -> bool:
        return self.control.take_save() or time.monotonic() - self._saved_at >= self.checkpoint_every

    def _checkpoint(self) -> None:
        if self.folder is not None:
            self._write_checkpoint(self.folder)
        self._saved_at = time.monotonic()

    def _write_checkpoint(self, folder: Path) -> Path:
        facts = {
            "cnnkit": cnnkit.__version__,
            "epoch": self.epoch,
            "position": self.position,
            "clocks": self.clocks.seconds,
            "clocks_before": getattr(self, "_clocks_before", {}) or dict.fromkeys(Clocks.KINDS, 0.0),
            "lr_scale": self.control.lr_scale,
        }
        return checkpoint.write(folder, jax.device_get(self._prepared().snapshot()), facts)

    def _restore(self) -> None:
        assert self._engine is not None
        like = self._engine.like(jax.eval_shape(lambda: self._fresh_model()))
        tree, facts = checkpoint.read(self.folder, like)
        self._engine.restore(tree, facts)
        self.epoch, self.position = facts["epoch"], facts["position"]
        self.control.lr_scale = facts.get("lr_scale", 1.0)

    # --- small parts ------------------------------------------------------------------------------

    def _fresh_model(self) -> Model:
        return self.task.init(init_key(self.seed), self.data.shape)

    def _prepared(self) -> Solo:
        """The engine, with the model as last saved or freshly drawn."""
        if self._engine is None:
            source = jax.device_put(Source(*map(np.asarray, self.data.train)))
            self._engine = Solo(self.task, source, self.clocks)
            if self.folder is not None and checkpoint.read_facts(self.folder) is not None:
                self._restore()
            else:
                with self.clocks.measure("compile"):
                    self._engine.place(jax.jit(self._fresh_model)())
        return self._engine

    def _ready(self, epochs: int | None) -> None:
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("the run already trains in the background; wait() for it, or stop() it first")
        if epochs is not None:
            self.epochs = settings.count("epochs", epochs)
            self.config["epochs"] = epochs
        self.control.clear()

    def _watcher(self, panel: bool | None) -> report.Watcher:
        if self.watch is not None and panel is not False:
            return self.watch
        return report.plain() if panel is False else default_watcher()

    def _judged(self, part: str) -> dict[str, float]:
        if part not in self._judges:
            self._judges[part] = Judge(self.task, self.data.split(part), self.clocks)
        model = self.model
        return self._judges[part](model.params, model.state)

    def _check_shapes(self) -> None:
        shape = self.augment.out_shape(self.data.shape) if self.augment else self.data.shape
        out: list[tuple[int, ...]] = []

        def init(key):
            params, state, out_shape = self.net.init(key, shape)
            out.append(out_shape)
            return params, state

        jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
        settings.check_classes(self.net, out[0], self.data)


default_watcher: Callable[[], report.Watcher] = report.plain


def set_default_watcher(make: Callable[[], report.Watcher]) -> None:
    """Choose who watches a run that was not given a watcher."""
    global default_watcher
    default_watcher = make


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


def _parts(judge: str | Sequence[str] | None, data: Dataset) -> tuple[str, ...]:
    if judge is None:
        return ("test",) if data.held_out is None else ("held_out", "test")
    parts = (judge,) if isinstance(judge, str) else tuple(judge)
    for part in parts:
        data.split(part)
    return parts


def _first_bad_layer(net: Layer, params: Any) -> str:
    for path, _, own in walk(net, params):
        for name, weight in own.items() if isinstance(own, dict) else ():
            if not np.isfinite(np.asarray(weight, np.float32)).all():
                return f"; the first layer with such weights is {path}, its {name}"
    return ""
