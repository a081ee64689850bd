"""Run: the object that people hold; it trains, records, resumes, and answers questions."""

import atexit
import json
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cnnkit
from cnnkit import losses
from cnnkit.augment import Augment
from cnnkit.data import Dataset
from cnnkit.layers import Layer
from cnnkit.names import choose, hinting
from cnnkit.parallel.emulate import Emulated
from cnnkit.parallel.fetch import Policy
from cnnkit.parallel.workers import join
from cnnkit.train import arguments, loop, report, settings
from cnnkit.train.clock import Clocks
from cnnkit.train.control import Control, stop_at_exit
from cnnkit.train.evaluate import Judges, Oracle
from cnnkit.train.facts import Facts
from cnnkit.train.keeper import Keeper
from cnnkit.train.optim import Optimizer
from cnnkit.train.rules import Rules
from cnnkit.train.standing import Setup, Standing
from cnnkit.train.task import DTYPES, Model, Task
from cnnkit.train.views import Views

LOSSES: dict[str, Callable] = {"cross_entropy": losses.cross_entropy, "squared_error": losses.squared_error}


class Run(Facts):
    """The training of one network on one data set.

    Args:
        net: the network, or a name in ``cnnkit.nets``; its last layer gives one number a class.
        data: what it learns from and is judged by, or the name of a set, or the folder of its images.
        batch: examples that one worker takes in one local step.
        epochs: how often the training set is gone through.
        seed: equal seeds give equal numbers, bit for bit on CPU.
        folder: where record, settings and checkpoints lie; a folder that holds this run already is gone on
            from. None keeps the record in memory alone.
        optimizer: from ``cnnkit.optim``, or its text; SGD at 0.01 with momentum 0.9 when left out.
        augment: from ``cnnkit.augment``, for training images, or its text.
        normalize: subtract the training set's mean and divide by its deviation, by channel.
        loss: ``"cross_entropy"`` or ``"squared_error"``.
        smoothing: label smoothing of the cross-entropy, 0 to below 1.
        dtype: what the network computes in: ``"float32"``; ``"tf32"``, the same with products of 10 bits
            where a GPU has them; or ``"bfloat16"``. Weights and their updates stay float32.
        workers: how many devices train together, over all processes; None takes all there are in a job of
            several processes, which the first Run joins (`cnnkit.workers.join`), else one.
        mode, delay, exchange, payload, momentum, outer, outer_lr, outer_momentum: how workers work
            together, as in `cnnkit.train.rules.Rules`.
        fetch: local steps of each worker between two exchanges: a policy from ``cnnkit.fetch``, a number, or
            its text.
        emulate: workers made slower than they are, from ``cnnkit.workers.emulate``, or their speeds.
        judge: the parts evaluated after an epoch; ``"test"``, and ``"held_out"`` where data has one, when
            left out.
        views: `Views` of each image that evaluation averages over, or their text.
        freeze: (epoch, layers) pairs, epochs from 0: from then on so many of the network's first layers learn no
            more, and no gradient goes that far back.
        evaluate_every: epochs between two evaluations; the last epoch is always evaluated.
        checkpoint_every: seconds between two checkpoints, 0 after every dispatch; one is also written at
            every end.
        dispatch: ``"time"`` trains for a moment between two looks from outside; ``"epoch"``, with one worker,
            for an epoch, without waiting for the host. Where nothing can look at the model between two epochs
            (no evaluation, no folder, no panel), the next one follows at once; a stop holds after that.
        watch: who is told of the progress; a panel in a notebook, a bar or lines elsewhere when left out.

    Text is what the command line takes: ``Run("lenet", "mnist", optimizer="sgd(one_cycle(0.1))", augment="flip()")``.

    Raises:
        ValueError, TypeError: settings that cannot work, each named, before anything is compiled.
    """

    @hinting(**arguments.ELSEWHERE)
    def __init__(
        self,
        net: Layer | str,
        data: Dataset | str | Path,
        *,
        batch: int = 128,
        epochs: int = 10,
        seed: int = 0,
        folder: str | Path | None = None,
        optimizer: Optimizer | str | None = None,
        augment: Augment | str | None = None,
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
        emulate: Emulated | Sequence[float] | None = None,
        judge: str | Sequence[str] | None = None,
        views: Views | str | None = None,
        freeze: Sequence[tuple[int, int]] = (),
        evaluate_every: int = 1,
        checkpoint_every: float = 30.0,
        dispatch: str = "time",
        watch: report.Watcher | None = None,
    ) -> None:
        join()
        arguments.check(
            folder=folder,
            normalize=normalize,
            smoothing=smoothing,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            fetch=fetch,
            judge=judge,
        )
        data = arguments.dataset(data)
        net = arguments.network(net, len(data.classes))
        augment, views = arguments.augmentation(augment), arguments.views(views)
        mean, std = data.statistics() if normalize else (np.zeros(1, np.float32), np.ones(1, np.float32))
        task = Task(
            net,
            arguments.optimizer(optimizer),
            augment,
            settings.loss_function(loss, smoothing, LOSSES),
            mean,
            np.maximum(std, np.float32(1e-6)),
            *choose(dtype, DTYPES, "dtype"),
            views,
            settings.freeze(arguments.pairs(freeze), net),
        )
        policy = settings.policy(fetch, delay)
        slowed = arguments.emulated(emulate)
        rules = Rules(mode, delay, exchange, payload, momentum, outer, outer_lr, outer_momentum, slowed)
        self.judge = settings.parts(judge, data)
        config = {
            "cnnkit": cnnkit.__version__,
            "net": net.describe(),
            "net_name": arguments.name_of(net, len(data.classes)),
            "data": settings.describe_data(data),
            "batch": settings.batch_size(batch, data),
            "epochs": settings.count("epochs", epochs),
            "seed": settings.count("seed", seed, least=0),
            "optimizer": task.optimizer.describe(),
            "augment": augment.describe() if augment else None,
            "normalize": normalize,
            "loss": {"name": loss, "smoothing": smoothing},
            "dtype": dtype,
            "workers": workers if workers is None else settings.count("workers", workers),
            "fetch": policy.describe(),
            "judge": self.judge,
            "views": None if views is None else views.describe(),
            "freeze": task.freeze,
            "dispatch": choose(dispatch, {"time": "time", "epoch": "epoch"}, "dispatch"),
            "evaluate_every": settings.count("evaluate_every", evaluate_every),
            "checkpoint_every": settings.not_negative("checkpoint_every", checkpoint_every),
            "kept": folder is not None,
            **settings.describe_rules(rules),
        }
        settings.check_shapes(task, data)
        self.config: dict[str, Any] = json.loads(json.dumps(config))
        self.net, self.data, self.task = net, data, task
        self.optimizer, self.augment = task.optimizer, augment
        self.batch, self.seed, self.rules, self.fetch = batch, seed, rules, policy
        self.evaluate_every, self.watch = evaluate_every, arguments.watching(watch)
        self.keeper = Keeper(None if folder is None else Path(folder), self.config, checkpoint_every)
        self.control, self.clocks = Control(), Clocks()
        self._setup = Setup(task, rules, data, batch, epochs, seed, self.fetch, workers, self.config)
        self.standing = Standing(self._setup, self.keeper, self.clocks, self.control)
        self.phase = "new"
        self.recent_loss = float("nan")
        self.ahead: tuple[Any, Any] | None = None  # the next epoch's layout, made while this one trained
        self.judges = Judges(task, data, self.clocks)
        self._oracle = Oracle(task, self.clocks)
        self._trainer: threading.Thread | None = None
        self._thread: threading.Thread | None = None
        self._taken = threading.Lock()  # by a training
        self._failure: BaseException | None = None

    def fit(self, epochs: int | None = None, panel: bool | None = None) -> "Run":
        """Train to the last epoch, from wherever the run stands; blocks until done.

        Ctrl-C (Interrupt in a notebook) ends the dispatch in flight, writes a checkpoint and raises
        KeyboardInterrupt; call fit() again to go on. A second one ends at once, and fit() goes on from the
        checkpoint before.

        Args:
            epochs: a new number of epochs for the whole run.
            panel: False gives the plain form of progress.

        Raises:
            Diverged: a loss was not finite.
            OSError: the folder cannot be written; the training stays in memory.
        """
        watcher = self._watcher(panel)
        self._ready(epochs)
        with self.control.interrupts():
            self._train(watcher)
        if self.control.interrupted:
            raise KeyboardInterrupt(f"stopped at epoch {self.epochs_done:.2f}; fit() goes on from there")
        return self

    def start(self, epochs: int | None = None, panel: bool | None = None) -> "Run":
        """Train in the background and return at once; `wait` joins, `stop`, `pause` and `resume` steer."""
        watcher = self._watcher(panel)
        self._ready(epochs)
        self._failure = None

        def work():
            try:
                self._train(watcher)
            except BaseException as error:  # handed over to whoever waits
                self._failure = error

        self._thread = threading.Thread(target=work, name="cnnkit training", daemon=True)
        self._thread.start()
        # A program that ends without waiting still leaves a checkpoint.
        atexit.register(stop_at_exit, weakref.ref(self))
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

    def again(self, seed: int) -> "Run":
        """Stand at the beginning with another seed, keeping what is compiled; for a run without a folder.

        Raises:
            ValueError: the run has a folder, which holds the training of one seed.
            RuntimeError: it trains now.
        """
        if self.folder is not None:
            raise ValueError(
                f"{self.folder} holds the training of seed {self.seed}; make another Run for {seed}"
            )
        if self.training:
            raise RuntimeError("the run trains now; stop() it first")
        self.seed = self._setup.seed = self.config["seed"] = settings.count("seed", seed, least=0)
        self.keeper = Keeper(None, self.config, self.keeper.every)
        self.standing.restart(self.keeper)
        self.phase = "new"
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
        judge = self.judges[split]
        with self.standing.turns:
            model = self._model()
            return judge(model.params, model.state)

    def predict(self, images: np.ndarray | str = "test", batch: int = 500) -> np.ndarray:
        """Class probabilities float32 [N, classes] of images uint8 [N, H, W, C], or of a part by its name.

        Raises:
            ValueError: images of another shape or type than the training set's.
        """
        if isinstance(images, str):
            images = self.data.split(images).images
        images = settings.images(images, self.data.shape)
        with self.standing.turns:
            model = self._model()
            return self._oracle(model.params, model.state, images, settings.count("batch", batch))

    @property
    def model(self) -> Model:
        """Parameters and statistics as they stand, or as drawn before any training: a copy that stays."""
        with self.standing.turns:
            return jax.tree.map(jnp.copy, self._model())

    def _model(self) -> Model:
        return self.standing.model(self.training and self._trainer is not threading.current_thread())

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ""
        done = f"epoch {self.epochs_done:.1f} of {self.epochs}"
        return ", ".join([f"Run of {self.data.name}{where}: {self.phase}", done, *report.judged(self)])

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint now, or a copy of the run as it stands into another folder.

        Raises:
            ValueError: the run has no folder and none is given.
            RuntimeError: it trains in the background; stop it first, or use ``run.control.save()``.
        """
        if folder is None and self.folder is None:
            raise ValueError("this run has no folder; give one: run.save('runs/name')")
        if self.training:
            raise RuntimeError("the run trains now; use run.control.save(), or stop() it first")
        self._lead()
        if folder is None:
            with self.keeper.locked():
                self.standing.keep()
            return Path(self.folder)  # type: ignore[arg-type]
        return self.keeper.copy(Path(folder), *self.standing.snapshot())

    @classmethod
    def load(
        cls,
        folder: str | Path,
        net: Layer | str | None = None,
        data: Dataset | str | Path | None = None,
        **changes: Any,
    ) -> "Run":
        """The run in a folder, as it was last saved.

        Args:
            folder: a run's folder.
            net: the network, where it has layers of your own making.
            data: the data set, where it is not one that `load` knows by name.
            changes: settings that may be others than the run had, such as workers=1.

        Raises:
            FileNotFoundError: no run lies there.
            ValueError: the data set differs from what the run saw, or must be given by hand.
        """
        from cnnkit.train.load import rebuild

        return rebuild(cls, Path(folder), net, data, changes)

    def _lead(self) -> None:
        """Of several processes, let the first one write."""
        self.keeper.writes = jax.process_index() == 0

    def _train(self, watcher: report.Watcher) -> None:
        self._trainer = threading.current_thread()
        try:
            loop.train(self, watcher)
        finally:
            self._trainer = None
            self._taken.release()

    def _ready(self, epochs: int | None) -> None:
        """Take the run for one training; `_train` gives it free again."""
        if not self._taken.acquire(blocking=False):
            where = (
                "the background" if self._thread is not None and self._thread.is_alive() else "another thread"
            )
            raise RuntimeError(f"the run already trains in {where}; wait() for it, or stop() it first")
        try:
            if epochs is not None:
                self._setup.epochs = self.config["epochs"] = settings.count("epochs", epochs)
            self._lead()
            self.standing.recover()
        except BaseException:
            self._taken.release()
            raise
        self.control.clear()
        self.phase = "train"

    def _watcher(self, panel: bool | None) -> report.Watcher:
        if panel is False:
            return report.plain()
        if self.watch is not None:
            return self.watch
        return report.usual() if jax.process_index() == 0 else report.Silent()
