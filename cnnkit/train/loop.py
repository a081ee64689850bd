"""The training loop: epochs of dispatches, each looked at from outside before the next begins."""

from typing import TYPE_CHECKING, Any

import numpy as np

from cnnkit.data import batches
from cnnkit.layers import Layer, walk
from cnnkit.train.report import Watcher
from cnnkit.train.step import Plan
from cnnkit.train.task import Sums, epoch_key

if TYPE_CHECKING:
    from cnnkit.train.run import Run

TICK = 0.4  # seconds of training between two looks from outside


class Diverged(RuntimeError):
    """A loss was no longer a finite number; the text names where, and what was kept."""


def train(run: "Run", watcher: Watcher) -> None:
    """Train a run from where it stands to its last epoch, or until it is stopped.

    Raises:
        Diverged: a loss was not finite.
        OSError: the folder cannot be written; the training stays in memory.
    """
    why = "failed"
    try:
        with run.keeper.locked():
            engine = run.engine
            engine.stop = run.control.stopping
            watcher.begin(run)
            while run.epoch < run.epochs and not engine.stop:
                _epoch(run, engine, watcher)
            run.keep()
            why = "done" if run.epoch >= run.epochs else "stopped"
    finally:
        run.phase = why
        watcher.end(run, why)


def lay_out(run: "Run", epoch: int) -> Plan:
    """An epoch's mini-batches and rates."""
    index, weight = batches(len(run.data), run.batch, run.seed, epoch)
    lr, momentum = run.task.optimizer.rates(epoch + np.arange(len(index)) / len(index), run.epochs)
    return Plan(index, weight, lr * np.float32(run.control.lr_scale), momentum, epoch_key(run.seed, epoch))


def _epoch(run: "Run", engine: Any, watcher: Watcher) -> None:
    plan = lay_out(run, run.epoch)
    scale = run.control.lr_scale
    engine.begin_epoch(plan, run.position == 0, run.epoch)
    before = engine.sums()
    while run.position < run.mini_batches:
        _hold_while_paused(run, watcher)
        run.phase = "train"
        if scale != run.control.lr_scale:
            plan, scale = lay_out(run, run.epoch), run.control.lr_scale
            engine.begin_epoch(plan, False, run.epoch)
        save = run.control.take_save() or run.keeper.due
        run.position = engine.advance(run.position, TICK, run.control.stopping, save)
        _check_finite(run, engine)
        before = _stretch(run, engine, before)
        watcher.tick(run)
        if engine.stop and run.position < run.mini_batches:
            return
        if engine.save:
            run.keep()
    _finish(run, engine, watcher, plan)


def _stretch(run: "Run", engine: Any, before: Sums) -> Sums:
    """Keep the loss over the last dispatch, and a row of what its rounds were."""
    now = engine.sums()
    seen = max(now.examples - before.examples, 1)
    run.recent_loss = (now.loss - before.loss) / seen
    if engine.last:
        row = {"kind": "rounds", "round": engine.round, "epochs": run.epochs_done, "examples": run.examples_seen}
        run.record.append(row | engine.last | {"train_loss": run.recent_loss})
    return now


def _finish(run: "Run", engine: Any, watcher: Watcher, plan: Plan) -> None:
    sums = engine.sums()
    if round(sums.examples) != len(run.data):
        raise RuntimeError(f"the epoch counted {sums.examples:.0f} of {len(run.data)} examples; please report this")
    run.epoch, run.position = run.epoch + 1, 0
    row = {
        "kind": "epoch",
        "epoch": run.epoch,
        "examples": run.examples_seen,
        "rounds": engine.round,
        "train_loss": sums.loss / sums.examples,
        "train_accuracy": sums.correct / sums.examples,
        "lr": float(plan.lr[-1]),
        "momentum": float(plan.momentum[-1]),
    }
    if run.epoch % run.evaluate_every == 0 or run.epoch >= run.epochs:
        run.phase = "evaluate"
        watcher.tick(run)
        for part in run.judge:
            judged = run.evaluate(part)
            row |= {f"{part}_loss": judged["loss"], f"{part}_accuracy": judged["accuracy"]}
    row |= run.clocks.lap()
    run.record.append(row)
    watcher.row(run, row)


def _hold_while_paused(run: "Run", watcher: Watcher) -> None:
    if run.control.paused and not run.control.stopping:
        run.phase = "paused"
        watcher.tick(run)
        run.control.wait_while_paused()


def _check_finite(run: "Run", engine: Any) -> None:
    bad = engine.bad()
    if bad is None:
        return
    batch, worker = bad
    where = _first_bad_layer(run.net, engine.model().params)
    place = f"epoch {run.epoch + 1}, mini-batch {batch + 1}" + (f", worker {worker}" if engine.workers > 1 else "")
    run.record.append(
        {"kind": "event", "event": "diverged", "epoch": run.epoch, "mini_batch": batch, "worker": worker}
    )
    run.control.stop()
    kept = run.go_back()
    raise Diverged(
        f"the loss is not a finite number since {place}{where}. {kept} "
        "Lower the learning rate, warm it up, or look at the data"
    )


def _first_bad_layer(net: Layer, params: Any) -> str:
    for path, _, own in walk(net, params):
        for name, weight in own.items() if isinstance(own, dict) else ():
            if not np.isfinite(np.asarray(weight, np.float32)).all():
                return f"; the first layer with such weights is {path}, its {name}"
    return ""
