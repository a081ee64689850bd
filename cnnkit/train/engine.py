"""Which engine drives a run: one worker by itself, or a team."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cnnkit.parallel import workers
from cnnkit.parallel.fetch import every
from cnnkit.train import settings
from cnnkit.train.solo import Solo
from cnnkit.train.step import Source
from cnnkit.train.team import Team

if TYPE_CHECKING:
    from cnnkit.train.run import Run


def make(run: "Run") -> Any:
    """The engine for a run's workers and rules."""
    source = Source(*map(np.asarray, run.data.train))
    alone = jax.process_count() == 1
    mesh = workers.make(1 if run.workers is None and alone else run.workers)
    if not alone:
        workers.agree({key: run.config.get(key) for key in (*settings.IDENTITY, "cnnkit", "fetch", "exchange")})
    if mesh.count == 1 and plain(run):
        return Solo(run.task, run.rules, source, run.clocks)
    scale = lambda: run.control.fetch_scale
    return Team(run.task, run.rules, mesh, run.fetch, source, run.clocks, scale)


def plain(run: "Run") -> bool:
    """Whether one worker's rounds are nothing but its steps, so that no exchange is needed."""
    rules = run.rules
    steps = rules.mode == "local" or run.fetch == every(1)
    own_way = rules.mode == "local" and (rules.momentum == "reset" or rules.outer != "plain")
    return steps and not own_way and not rules.delay and rules.emulated is None
