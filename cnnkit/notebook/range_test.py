"""The learning-rate range test: a copy of the run's model goes through rising rates, and its loss is drawn."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.layers import in_loop
from cnnkit.notebook import style
from cnnkit.notebook.style import Picture
from cnnkit.train.loop import lay_out
from cnnkit.train.step import Plan, Progress, Source, local_step
from cnnkit.train.task import Sums, Task

SMOOTH = 0.9
EARLY = 5  # steps before which the moving average is hardly one
RISE = 2.0  # the test is over where the smoothed loss is so many times its lowest


@dataclass(frozen=True)
class LrRange:
    """What `lr_range` found; shows as its figure.

    Args:
        lrs: float [steps].
        losses: float [steps], of the mini-batch that each rate was tried on.
        smoothed: float [steps], their moving average.
    """

    lrs: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray

    @property
    def steepest(self) -> float:
        """The rate at which the smoothed loss falls fastest: a fair rate to begin with."""
        half = max(len(self.lrs) // 20, 2)
        middle = np.arange(max(EARLY, half), self._good() - half)
        if not len(middle):
            return float(self.lrs[0])
        fall = self.smoothed[middle - half] - self.smoothed[middle + half]
        return float(self.lrs[middle[int(np.argmax(fall))]])

    @property
    def largest(self) -> float:
        """The rate at which the smoothed loss is lowest: beyond it training comes apart."""
        return float(self.lrs[EARLY + int(np.argmin(self.smoothed[EARLY : self._good()]))])

    def figure(self) -> Picture:
        """Loss against learning rate."""
        figure, (ax,) = style.figure(5.0, 3.0)
        ax.plot(self.lrs, self.losses, color=style.PALETTE["sky"], linewidth=0.8, label="mini-batch")
        ax.plot(self.lrs, self.smoothed, color=style.PALETTE["blue"], linewidth=1.8, label="moving average")
        for rate, name, line in ((self.steepest, "steepest", "--"), (self.largest, "lowest", ":")):
            color = style.PALETTE["vermilion"]
            ax.axvline(rate, color=color, linestyle=line, linewidth=1.3, label=f"{name}: {rate:.2g}")
        ax.set_xscale("log")
        known = self.losses[: self._good()]
        ax.set_ylim(0.9 * np.nanmin(known), 1.1 * np.nanmax(known))
        style.label(ax, "learning rate", "training loss")
        style.legend(ax)
        return figure

    def _good(self) -> int:
        """Steps before the loss has risen for good, or is no number."""
        smoothed = np.where(np.isfinite(self.smoothed), self.smoothed, np.inf)[EARLY:]
        over = np.flatnonzero(smoothed > RISE * np.minimum.accumulate(smoothed))
        return EARLY + max(int(over[0]) if len(over) else len(smoothed), 1)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return self.figure()._repr_mimebundle_(include, exclude)


def lr_range(run: Any, low: float = 1e-5, high: float = 1.0, steps: int = 100) -> LrRange:
    """Loss over training steps whose learning rate rises from low to high by equal factors (Smith 2017).

    It works on a copy: the run's weights, record, place in the epoch and clocks stay as they are.

    Args:
        run: a Run of one worker or many; the test runs on one.
        low, high: of the learning rate.
        steps: how many; each takes a mini-batch of the run's.

    Raises:
        ValueError: not 0 < low < high, or fewer than 10 steps.
    """
    if not 0 < low < high:
        raise ValueError(f"low is {low} and high is {high}; a range of learning rates needs 0 < low < high")
    if steps < 10:
        raise ValueError(f"steps is {steps}; at least 10 are needed to see a curve")
    lrs = np.geomspace(low, high, steps).astype(np.float32)
    plan = lay_out(run, 0)
    rows = np.arange(steps) % len(plan.index)
    momentum = np.full(steps, plan.momentum[0], np.float32)
    plan = Plan(plan.index[rows], plan.weight[rows], lrs, momentum, plan.key, plan.epoch)
    model = run.model
    progress = Progress.fresh(model._replace(opt=run.task.optimizer.init(model.params)))
    sweep = jax.jit(_sweep, static_argnums=0)
    losses = np.asarray(sweep(run.task, progress, Source(*map(jnp.asarray, run.data.train)), plan), float)
    return LrRange(lrs.astype(float), losses, smooth(losses))


def smooth(losses: np.ndarray) -> np.ndarray:
    """Moving average s ← 0.9·s + 0.1·loss, divided by 1 − 0.9ⁿ so that it does not begin at 0."""
    total, out = 0.0, []
    for n, loss in enumerate(losses, 1):
        total = SMOOTH * total + (1 - SMOOTH) * loss
        out.append(total / (1 - SMOOTH**n))
    return np.array(out)


def _sweep(task: Task, progress: Progress, source: Source, plan: Plan) -> jax.Array:
    def step(progress, i):
        progress = local_step(task, progress._replace(sums=Sums.zero()), source, plan, i)
        return progress, progress.sums.loss / progress.sums.examples

    with in_loop():
        return lax.scan(step, progress, jnp.arange(len(plan.lr)))[1]
