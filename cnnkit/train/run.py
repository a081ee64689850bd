"""Run: the object that people hold; it trains, records, resumes, and answers questions."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import cnnkit
from cnnkit import losses
from cnnkit.augment import Augment
from cnnkit.data import Dataset
from cnnkit.layers import Layer
from cnnkit.names import choose
from cnnkit.parallel.emulate import Emulated
from cnnkit.parallel.fetch import Policy, as_policy
from cnnkit.parallel.workers import Workers
from cnnkit.record.rows import Record
from cnnkit.train import engine, loop, report, settings
from cnnkit.train.clock import Clocks
from cnnkit.train.control import Control
from cnnkit.train.evaluate import Judge, probabilities
from cnnkit.train.keeper import Keeper
from cnnkit.train.optim import Optimizer, sgd
from cnnkit.train.regroup import like, regroup
from cnnkit.train.round import Rules
from cnnkit.train.task import DTYPES, Model, Task, init_key

LOSSES = {"cross_entropy": losses.cross_entropy, "squared_error": losses.squared_error}


class Run:
    """The training of one network on one data set.

    Args:
        net: the network; its last layer gives one number a class.
        data: what it learns from and is judged by.
        batch: examples that one worker takes in one local step.
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
        workers: how many devices train together, over all processes; None takes all there are in a job of
            several processes, else one.
        mode, delay, exchange, payload, momentum, outer, outer_lr, outer_momentum: how workers work
            together, as in `cnnkit.train.round.Rules`.
        fetch: local steps of each worker between two exchanges: a policy from ``cnnkit.fetch``, a number, or
            its text.
        emulate: workers made slower than they are, from ``cnnkit.workers.emulate``.
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
        workers: int | None = None,
        mode: str = "local",
        fetch: Policy | int | str = 1,
        delay: int = 0,
        exchange: str = "psum",
        payload: str = "float32",
        momentum: str = "keep",
        outer: str = "plain",
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        emulate: Emulated | None = None,
        judge: str | Sequence[str] | None = None,
        evaluate_every: int = 1,
        checkpoint_every: float = 30.0,
        watch: report.Watcher | None = None,
    ) -> None:
        self.net, self.data = settings.network(net), data
        self.batch = settings.batch_size(batch, data)
        self.epochs = settings.count("epochs", epochs)
        self.seed = settings.count("seed", seed, least=0)
        self.evaluate_every = settings.count("evaluate_every", evaluate_every)
        self.judge = settings.parts(judge, data)
        self.fetch = as_policy(fetch)
        self.rules = Rules(mode, delay, exchange, payload, momentum, outer, outer_lr, outer_momentum, emulate)
        self.workers = workers
        mean, std = data.statistics() if normalize else (np.float32([0]), np.float32([1]))
        self.task = Task(
            net,
            optimizer or sgd(),
            augment,
            settings.loss_function(loss, smoothing, LOSSES),
            mean,
            np.maximum(std, np.float32(1e-6)),
            choose(dtype, DTYPES, "dtype"),
        )
        settings.check_shapes(self.task, data)
        config = {
            "cnnkit": cnnkit.__version__,
            "net": net.describe(),
            "data": settings.describe_data(data),
            "batch": batch,
            "epochs": epochs,
            "seed": seed,
            "optimizer": self.task.optimizer.describe(),
            "augment": augment.describe() if augment else None,
            "normalize": normalize,
            "loss": {"name": loss, "smoothing": smoothing},
            "dtype": dtype,
            "workers": workers,
            "fetch": self.fetch.describe(),
            **settings.describe_rules(self.rules),
        }
        self.config: dict[str, Any] = json.loads(json.dumps(config))
        self.keeper = Keeper(None if folder is None else Path(folder), self.config, checkpoint_every)
        self.control = Control()
        self.clocks = Clocks()
        self.watch = watch
        self.phase = "new"
        self.epoch = self.position = 0
        self.recent_loss = float("nan")
        self._engine: Any = None
        self._judges: dict[str, Judge] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        if (facts := self.keeper.facts()) is not None:
            self.epoch, self.position = facts["epoch"], facts["position"]

    # --- training ---------------------------------------------------------------------------------

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
            loop.train(self, self._watcher(panel))
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
                loop.train(self, watcher)
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

    # --- asking -----------------------------------------------------------------------------------

    def evaluate(self, split: str = "test") -> dict[str, float]:
        """Loss and accuracy over a part, every example exactly once.

        Args:
            split: ``"train"``, ``"held_out"`` or ``"test"``.

        Returns:
            loss, accuracy (0 to 1), errors and examples.
        """
        if split not in self._judges:
            self._judges[split] = Judge(self.task, self.data.split(split), self.clocks)
        model = self.model
        return self._judges[split](model.params, model.state)

    def predict(self, images: np.ndarray | str = "test", batch: int = 500) -> np.ndarray:
        """Class probabilities float32 [N, classes] of images uint8 [N, H, W, C], or of a part by its name."""
        if isinstance(images, str):
            images = self.data.split(images).images
        return probabilities(self.task, self.model.params, self.model.state, images, batch, self.clocks)

    @property
    def model(self) -> Model:
        """Parameters and statistics as they stand, or as drawn before any training."""
        return self.engine.model()

    @property
    def params(self) -> Any:
        """The network's parameters."""
        return self.model.params

    @property
    def state(self) -> Any:
        """The network's statistics."""
        return self.model.state

    @property
    def folder(self) -> Path | None:
        """Where record, settings and checkpoints lie."""
        return self.keeper.folder

    @property
    def record(self) -> Record:
        """Every row so far."""
        return self.keeper.record

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row for each finished epoch."""
        return self.record.epochs()

    @property
    def optimizer(self) -> Optimizer:
        """How parameters follow gradients."""
        return self.task.optimizer

    @property
    def augment(self) -> Augment | None:
        """What training images go through."""
        return self.task.augment

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
        return self.phase in ("train", "evaluate", "paused")

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ""
        last = self.history[-1] if self.history else {}
        found = [f"{p} {100 * last[f'{p}_accuracy']:.2f} %" for p in self.judge if f"{p}_accuracy" in last]
        done = f"epoch {self.epochs_done:.1f} of {self.epochs}"
        return ", ".join([f"Run of {self.data.name}{where}: {self.phase}", done, *found])

    # --- keeping ----------------------------------------------------------------------------------

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint now, or a copy of the run as it stands into another folder.

        Raises:
            ValueError: the run has no folder and none is given.
            RuntimeError: it trains in the background; stop it first, or use ``run.control.save()``.
        """
        if folder is None and self.folder is None:
            raise ValueError("this run has no folder; give one: run.save('runs/name')")
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("the run trains in the background; use run.control.save(), or stop() it first")
        if folder is None:
            with self.keeper.locked():
                self.keep()
            return Path(self.folder)  # type: ignore[arg-type]
        return self.keeper.copy(Path(folder), self.engine.snapshot(), self._facts())

    @classmethod
    def load(cls, folder: str | Path, net: Layer | None = None, data: Dataset | None = None) -> "Run":
        """The run in a folder, as it was last saved.

        Args:
            folder: a run's folder.
            net: the network, where it has layers of your own making.
            data: the data set, where it is not one that `load` knows by name.

        Raises:
            FileNotFoundError: no run lies there.
            ValueError: the data set differs from what the run saw, or must be given by hand.
        """
        from cnnkit.train.load import rebuild

        return rebuild(cls, Path(folder), net, data)

    def keep(self) -> None:
        """Write a checkpoint if the run has a folder."""
        if self.folder is not None:
            self.keeper.write(self.engine.snapshot(), self._facts())

    def go_back(self) -> str:
        """Return to the last checkpoint if there is one; what was kept, in words."""
        facts = self.keeper.facts()
        if facts is None:
            return "No checkpoint was kept, for want of a folder=."
        self._restore(self._engine)
        return f"The run is back at its checkpoint of epoch {self.epochs_done:.2f} in {self.folder}."

    @property
    def engine(self) -> Any:
        """What trains, with the model as last saved or freshly drawn; made at first use."""
        if self._engine is None:
            made = engine.make(self)
            self.keeper.writes = self.keeper.record.writes = made.writes
            if self.keeper.facts() is not None:
                self._restore(made)
            else:
                with self.clocks.measure("compile"):
                    made.place(jax.jit(self._fresh)())
            self._engine = made
        return self._engine

    def _fresh(self) -> Model:
        return self.task.init(init_key(self.seed), self.data.shape)

    def _facts(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "round": self.engine.round,
            "workers": self.engine.workers,
            "clocks": self.clocks.facts(),
            "lr_scale": self.control.lr_scale,
            "fetch_scale": self.control.fetch_scale,
        }

    def _restore(self, made: Any) -> None:
        facts = self.keeper.facts() or {}
        shapes = like(self.task, self.rules, jax.eval_shape(self._fresh), facts["workers"])
        tree, _ = self.keeper.read(shapes)
        self.epoch, self.position = facts["epoch"], facts["position"]
        self.control.lr_scale, self.control.fetch_scale = facts["lr_scale"], facts["fetch_scale"]
        lr, momentum = self.optimizer.rates(np.float64(self.epochs_done), self.epochs)
        made.restore(regroup(self.task, self.rules, tree, made.workers, lr, momentum), facts["round"])
        if self._engine is None:
            self.clocks.restore(facts["clocks"])

    def _ready(self, epochs: int | None) -> None:
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("the run already trains in the background; wait() for it, or stop() it first")
        if epochs is not None:
            self.epochs = settings.count("epochs", epochs)
            self.config["epochs"] = epochs
        self.control.clear()

    def _watcher(self, panel: bool | None) -> report.Watcher:
        if panel is False:
            return report.plain()
        return self.watch or default_watcher()


default_watcher: Callable[[], report.Watcher] = report.plain


def set_default_watcher(make: Callable[[], report.Watcher]) -> None:
    """Choose who watches a run that was not given a watcher."""
    global default_watcher
    default_watcher = make
