"""The training loop: epochs of dispatches, each looked at from outside before the next begins."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cnnkit.data import batches
from cnnkit.train import beside, diverge
from cnnkit.train.report import PLAIN, Nobody, Watcher
from cnnkit.train.step import Plan
from cnnkit.train.task import Sums, epoch_key

if TYPE_CHECKING:
    from cnnkit.train.run import Run

TICK = 0.4  # seconds of training between two looks from outside


def train(run: "Run", watcher: Watcher) -> None:
    """Train a run from where it stands to its last epoch, or until it is stopped.

    Raises:
        Diverged: a loss was not finite.
        OSError: the folder cannot be written; the training stays in memory.
    """
    why, told = "failed", False
    try:
        with run.keeper.locked():
            with run.standing.turns:
                engine = run.standing.about_to_train()
            engine.stop = False
            told = True
            watcher.begin(run)
            with beside.compiling_later_programs(run, engine):
                _epochs(run, engine, watcher)
            run.standing.keep()
            with run.standing.turns:
                engine.model()  # with delay it takes all processes, and from here on one may ask alone
            why = "done" if run.epoch >= run.epochs else "stopped"
    finally:
        run.phase = why
        if told:
            watcher.end(run, why)


def _epochs(run: "Run", engine: Any, watcher: Watcher) -> None:
    try:
        while run.epoch < run.epochs and not engine.stop:
            _epoch(run, engine, watcher)
    except diverge.Diverged:
        raise
    except Exception:
        # What is on its way will have been trained: without its row, the run would stand an epoch before its model.
        with contextlib.suppress(Exception):
            while engine.begun is not None:
                _epoch(run, engine, Nobody())
        raise


def lay_out(
    run: "Run", epoch: int, lr_scale: float = 1.0, ahead: Callable[[Plan], Plan] | None = None
) -> Plan:
    """An epoch's mini-batches and rates.

    Args:
        run: whose.
        epoch: from 0.
        lr_scale: factor on the learning rate.
        ahead: keep it for the next call that asks for the same, as this puts it onto devices before it is needed.
    """
    asked = (epoch, lr_scale, run.epochs, run.seed)
    if run.ahead is not None and run.ahead[0] == asked:
        return run.ahead[1]
    index, weight = batches(len(run.data), run.batch, run.seed, epoch)
    lr, momentum = run.task.optimizer.rates(epoch + np.arange(len(index)) / len(index), run.epochs)
    key = epoch_key(run.seed, epoch)
    plan = Plan(index, weight, lr * np.float32(lr_scale), momentum, key, np.int32(epoch))
    if ahead is not None:
        plan = ahead(plan)
        run.ahead = (asked, plan)
    return plan


def _prepare_next(run: "Run", engine: Any, watcher: Watcher, scale: float) -> None:
    """The next epoch's layout while this one's last steps are on their way, and its steps behind them."""
    # What fails here fails again where it is needed, and there no steps are lost by it.
    with contextlib.suppress(Exception):
        plan = lay_out(run, run.epoch + 1, scale, engine.ahead)
        if engine.whole and not _looked_at(run, watcher):
            engine.begin(plan)


def _looked_at(run: "Run", watcher: Watcher) -> bool:
    """Whether anything may want the model as it is at the end of this epoch."""
    judged = bool(run.judge) and (run.epoch + 1) % run.evaluate_every == 0
    held = run.control.stopping or run.control.paused
    return judged or held or run.keeper.folder is not None or not isinstance(watcher, PLAIN)


def _epoch(run: "Run", engine: Any, watcher: Watcher) -> None:
    scale = engine.scales.lr
    plan = engine.begun
    if plan is None or plan.epoch != run.epoch:
        plan = lay_out(run, run.epoch, scale)
    engine.begin_epoch(plan, run.position == 0)
    before = engine.sums()
    if run.epoch + 1 < run.epochs:
        engine.meanwhile = lambda: _prepare_next(run, engine, watcher, scale)
    try:
        done = _stretches(run, engine, watcher, plan, scale, before)
    finally:
        engine.meanwhile = None  # it holds the run, which holds the engine
    if done is not None:
        _finish(run, engine, watcher, done)


def _stretches(
    run: "Run", engine: Any, watcher: Watcher, plan: Plan, scale: float, before: Sums
) -> Plan | None:
    """The epoch's dispatches; its plan as it was last, or None when the run was stopped before its end."""
    while run.position < run.mini_batches:
        if engine.begun is None:
            _hold_while_paused(run, watcher)
        run.phase = "train"
        if scale != engine.scales.lr and engine.begun is None:
            scale = engine.scales.lr
            plan = lay_out(run, run.epoch, scale)
            engine.begin_epoch(plan, False)
        run.standing.advance(TICK, run.control.take_save() or run.keeper.due)
        check_finite(run, plan)
        before = _stretch(run, engine, before)
        watcher.tick(run)
        if engine.stop and run.position < run.mini_batches:
            return None
        if engine.save:
            run.standing.keep()
    return plan


def _stretch(run: "Run", engine: Any, before: Sums) -> Sums:
    """Keep the loss over the last dispatch, and a row of what its rounds were."""
    now = engine.sums()
    if now.examples > before.examples:
        run.recent_loss = (now.loss - before.loss) / (now.examples - before.examples)
    if engine.last:
        row = {
            "kind": "rounds",
            "round": engine.round,
            "epochs": run.epochs_done,
            "examples": run.examples_seen,
        }
        run.record.append(row | engine.last | {"train_loss": run.recent_loss})
    return now


def _finish(run: "Run", engine: Any, watcher: Watcher, plan: Plan) -> None:
    with run.standing.turns:
        sums = engine.books()
    check_finite(run, plan)
    if round(sums.examples) != len(run.data):
        raise RuntimeError(
            f"the epoch counted {sums.examples:.0f} of {len(run.data)} examples; please report this"
        )
    epoch = run.epoch + 1
    row = {
        "kind": "epoch",
        "epoch": epoch,
        "examples": run.examples_seen,
        "rounds": engine.round,
        "train_loss": sums.loss / sums.examples,
        "train_accuracy": sums.correct / sums.examples,
        "lr": float(plan.lr[-1]),
        "momentum": float(plan.momentum[-1]),
    }
    if epoch % run.evaluate_every == 0 or epoch >= run.epochs:
        run.phase = "evaluate"
        watcher.tick(run)
        for part in run.judge:
            judged = run.evaluate(part)
            row |= {f"{part}_loss": judged["loss"], f"{part}_accuracy": judged["accuracy"]}
    row |= run.clocks.lap()
    # Only now, so that an interrupt before goes on with this epoch's evaluation.
    run.standing.epoch, run.standing.position = epoch, 0
    run.record.append(row)
    watcher.row(run, row)


def _hold_while_paused(run: "Run", watcher: Watcher) -> None:
    if run.control.paused and not run.control.stopping:
        run.phase = "paused"
        watcher.tick(run)
        run.control.wait_while_paused()


def check_finite(run: "Run", plan: Plan) -> None:
    """End a training whose loss was not finite, back at the last good checkpoint.

    Raises:
        Diverged: it was; the text names epoch, mini-batch, worker, layer, and what was kept.
    """
    engine = run.engine
    if (bad := engine.bad()) is None:
        return
    batch, worker = bad
    layer = diverge.place(run.task, engine.model(), run.data.train, plan, batch)
    where = f"epoch {run.epoch + 1}, mini-batch {batch + 1}" + (
        f", worker {worker}" if engine.workers > 1 else ""
    )
    event = {"kind": "event", "event": "diverged", "epoch": run.epoch, "mini_batch": batch, "worker": worker}
    run.record.append(event | {"place": layer})
    kept = run.standing.go_back()
    raise diverge.Diverged(
        f"the loss is not a finite number since {where}{f', first in {layer}' if layer else ''}. {kept} {diverge.ADVICE}"
    )
