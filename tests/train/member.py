"""One process of a job, started by the tests: python member.py REPORT RUNS, a list of runs' settings in JSON."""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.data import load
from cnnkit.layers import Layer, batch_norm, dense, relu, serial
from cnnkit.parallel import workers
from cnnkit.train import loop
from cnnkit.train.layerwise import Layerwise, share
from cnnkit.train.report import Silent
from cnnkit.train.run import Run
from cnnkit.train.step import Source


def net(width: int = 8, nan_at: int | None = None) -> Layer:
    parts = dense(width), batch_norm(), relu(), dense(10)
    return serial(*parts) if nan_at is None else serial(fragile(nan_at), *parts)


def fragile(nan_at: int) -> Layer:
    """NaN on worker 1 once it has seen so many mini-batches."""

    def apply(params, state, x, *, key=None, train=False):
        try:
            here = lax.axis_index("worker")
        except NameError:  # no worker's program
            here = 0
        spoilt = (here == 1) & (state["steps"] >= nan_at)
        return jnp.where(spoilt, jnp.nan, x), {"steps": state["steps"] + 1}

    return Layer(lambda key, shape: ((), {"steps": jnp.float32(0)}, shape), apply, "fragile")


class Acts(Silent):
    """Says where the run is, and acts when it is there: stops, changes rates, sleeps, breaks down."""

    def __init__(self, sleep=0.0, stop_at=None, scale_at=None, break_at=None):
        self.sleep, self.stop_at, self.scale_at, self.break_at = sleep, stop_at, scale_at, break_at

    def tick(self, run):
        print(f"round {run.engine.round}", flush=True)
        time.sleep(self.sleep)
        if run.engine.round == self.stop_at:
            run.stop()
        if run.engine.round == self.scale_at:
            run.control.lr_scale, run.control.fetch_scale = 0.5, 2.0
        if run.engine.round == self.break_at:
            raise ArithmeticError("for this test")


def one(settings: dict) -> dict:
    """What is to be told of one run."""
    data = load("digits").take(train=203, test=101)
    watch = Acts(**settings.pop("acts", {}))
    made = net(settings.pop("width", 8), settings.pop("nan_at", None))
    how = settings.pop("layerwise", None)
    run = Run(made, data, watch=watch, **settings)
    if how is not None:
        return {"numbers": layer_by_layer(run, how).tolist()}
    told: dict = {"began": [run.epoch, len(run.record)]}
    try:
        run.fit()
    except (RuntimeError, ValueError) as error:
        return told | {"error": str(error)}
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((run.params, run.state))])
    return told | {
        "phase": run.phase, "workers": run.engine.workers, "round": run.engine.round, "overlaps": run.engine.overlaps,
        "numbers": numbers.tolist(), "evaluated": run.evaluate("test"), "history": run.history,
        "rounds": run.record.rounds(), "folder": None if run.folder is None else sorted(p.name for p in run.folder.glob("*")),
    }  # fmt: skip


def layer_by_layer(run: Run, how: str) -> np.ndarray:
    """The numbers after a run's epochs, each parameter exchanged by itself, in pieces."""
    source = Source(*map(np.asarray, run.data.train))
    with Layerwise(run.task, run.model, run.data.shape, run.batch, how=how, piece=300) as one:
        for epoch in range(run.epochs):
            if epoch:
                one.tune(next(share(source, loop.lay_out(run, epoch), one.team)), repeats=1)
            losses = list(one.steps(share(source, loop.lay_out(run, epoch), one.team)))
        model = one.model
    numbers = [np.ravel(leaf) for leaf in jax.tree.leaves((model.params, model.state))]
    return np.concatenate([*numbers, losses[-1:]])


def main(report: str, runs: list[dict]) -> None:
    workers.join(timeout=60)
    loop.TICK = 1e-4  # a round a dispatch
    Path(report).write_text(json.dumps([one(settings) for settings in runs]))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
