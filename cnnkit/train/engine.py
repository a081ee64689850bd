"""Which engine drives a run: one worker by itself, or a team."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cnnkit.parallel import workers
from cnnkit.parallel.fetch import Policy, every
from cnnkit.train import settings
from cnnkit.train.clock import Clocks
from cnnkit.train.control import Control
from cnnkit.train.rules import Rules
from cnnkit.train.solo import Solo
from cnnkit.train.step import Source
from cnnkit.train.team import Team

if TYPE_CHECKING:
    from cnnkit.train.standing import Setup


def make(setup: "Setup", clocks: Clocks, control: Control) -> Any:
    """The engine for a run's workers and rules.

    Raises:
        ValueError: fewer devices than workers, speeds to emulate that are not one for each, or processes
            that do not run the same.
    """
    source = Source(*map(np.asarray, setup.data.train))
    alone = jax.process_count() == 1
    if not alone:
        workers.agree({key: setup.config[key] for key in settings.TOGETHER} | {"jax": jax.__version__})
    mesh = workers.make(1 if setup.workers is None and alone else setup.workers)
    emulated = setup.rules.emulated
    if emulated is not None and len(emulated.speeds) != mesh.count:
        raise ValueError(
            f"emulate has {len(emulated.speeds)} speeds, but there are {mesh.count} workers; give one for each"
        )
    if mesh.count == 1 and plain(setup.rules, setup.fetch):
        whole = setup.config["dispatch"] == "epoch"
        return Solo(setup.task, setup.rules, source, clocks, control, whole)
    return Team(setup.task, setup.rules, mesh, setup.fetch, source, clocks, control)


def plain(rules: Rules, fetch: Policy) -> bool:
    """Whether one worker's rounds are nothing but its steps, so that no exchange is needed."""
    steps = rules.mode == "local" or fetch == every(1)
    own_way = rules.mode == "local" and (rules.momentum == "reset" or rules.outer != "plain")
    return steps and not own_way and not rules.delay and rules.emulated is None
