"""Optimizers by name, over optax; their rates come in as data, so that no schedule recompiles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cnnkit.names import choose, hinting, lacking
from cnnkit.train.muon import scale_by_orthogonal
from cnnkit.train.schedule import (  # noqa: F401  (handed on as cnnkit.optim)
    SCHEDULES,
    Schedule,
    as_schedule,
    constant,
    cosine,
    fraction,
    not_negative,
    one_cycle,
    stages,
)

Transform = Callable[[Any, Any], optax.GradientTransformation]


@dataclass(frozen=True, eq=False)
class Optimizer:
    """An optax transformation whose learning rate and momentum are arguments of each step.

    Args:
        name: its kind.
        config: its settings, for the record.
        schedule: rates over the training.
        momentum: used where the schedule gives none.
        transform: ``transform(lr, momentum)`` builds the optax transformation; its state's structure must
            not depend on the rates.
    """

    name: str
    config: dict[str, Any]
    schedule: Schedule
    momentum: float
    transform: Transform

    def init(self, params: Any) -> Any:
        """Optimizer state for these parameters."""
        return self.transform(0.0, self.momentum).init(params)

    def update(self, grads: Any, state: Any, params: Any, lr: Any, momentum: Any) -> tuple[Any, Any]:
        """New parameters and state after one step with the gradient of the mean loss."""
        updates, state = self.transform(lr, momentum).update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def rates(self, epoch: Any, epochs: float) -> tuple[np.ndarray, np.ndarray]:
        """(lr, momentum), float32, at these fractional epochs."""
        lr, momentum = self.schedule(epoch, epochs)
        return lr, np.where(np.isnan(momentum), np.float32(self.momentum), momentum)

    def describe(self) -> dict[str, Any]:
        """Plain data that identifies it in a record."""
        schedule = {"name": self.schedule.name, **self.schedule.config}
        return {"name": self.name, **self.config, "schedule": schedule}


@hinting()
def sgd(lr: Schedule | float = 0.01, *, momentum: float = 0.9, nesterov: bool = False) -> Optimizer:
    """Stochastic gradient descent: v ← m·v + g; w ← w − lr·v (Nesterov: w ← w − lr·(g + m·v)).

    Args:
        lr: a number or a schedule.
        momentum: 0 to below 1.
        nesterov: look ahead by one step.

    >>> sgd(0.1, momentum=0.9).describe()["momentum"]
    0.9
    """
    fraction("sgd", momentum=momentum)
    return Optimizer(
        "sgd",
        {"momentum": momentum, "nesterov": nesterov},
        as_schedule(lr),
        momentum,
        lambda lr, m: optax.chain(optax.trace(m, nesterov), optax.scale_by_learning_rate(lr)),
    )


@hinting()
def adamw(
    lr: Schedule | float = 1e-3, *, b1: float = 0.9, b2: float = 0.999, weight_decay: float = 1e-4
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); a momentum schedule drives b1.

    Args:
        lr: a number or a schedule.
        b1, b2: how much of the mean gradient and of its mean square a step keeps.
        weight_decay: on filters and matrices; vectors (biases, norms) have none.
    """
    fraction("adamw", b1=b1, b2=b2)
    not_negative("adamw", weight_decay=weight_decay)
    return Optimizer(
        "adamw",
        {"b1": b1, "b2": b2, "weight_decay": weight_decay},
        as_schedule(lr),
        b1,
        lambda lr, m: optax.adamw(lr, b1=m, b2=b2, weight_decay=weight_decay, mask=_filters),
    )


@hinting()
def muon(
    lr: Schedule | float = 0.05,
    *,
    momentum: float = 0.95,
    steps: int = 5,
    unit: bool = False,
    matrices: float | None = None,
    rest: float = 0.5,
    rest_momentum: float | None = None,
    rest_decay: float = 0.0,
) -> Optimizer:
    """Muon on filters and matrices: momentum, made orthogonal by Newton-Schulz (Jordan et al. 2024).

    Vectors (biases, norms), and matrices if they have a factor of their own, go by Nesterov SGD.

    Args:
        lr: a number or a schedule.
        momentum: of what is made orthogonal; of the rest too, unless it has its own.
        steps: Newton-Schulz iterations.
        unit: filters and matrices keep an average length of 1, as `scale_by_orthogonal` says.
        matrices: factor on the rate of dense layers' weights by SGD; None makes them orthogonal as well.
        rest: factor on the rate of vectors.
        rest_momentum: of what goes by SGD.
        rest_decay: what is added to the gradient of vectors, as a part of them.
    """
    fraction("muon", momentum=momentum, rest_momentum=momentum if rest_momentum is None else rest_momentum)
    not_negative("muon", rest=rest, matrices=matrices or 0.0, rest_decay=rest_decay)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"muon: steps is {steps!r}; it must be a whole number of at least 1")

    def transform(lr, m):
        own = m if rest_momentum is None else rest_momentum

        def plain(factor):
            return optax.chain(optax.trace(own, nesterov=True), optax.scale_by_learning_rate(lr * factor))

        vectors = (
            optax.chain(optax.add_decayed_weights(rest_decay), plain(rest)) if rest_decay else plain(rest)
        )
        kinds = {"filters": scale_by_orthogonal(lr, m, steps, unit), "rest": vectors}
        if matrices is not None:
            kinds["matrices"] = plain(matrices)
        return optax.partition(kinds, lambda params: _kinds(params, matrices is not None))

    config = {"momentum": momentum, "steps": steps, "unit": unit, "matrices": matrices, "rest": rest}
    config |= {"rest_momentum": rest_momentum, "rest_decay": rest_decay}
    return Optimizer("muon", config, as_schedule(lr), momentum, transform)


def _kinds(params: Any, apart: bool) -> Any:
    def kind(w):
        if jnp.ndim(w) < 2:
            return "rest"
        return "matrices" if apart and jnp.ndim(w) == 2 else "filters"

    return jax.tree.map(kind, params)


def _filters(params: Any) -> Any:
    return jax.tree.map(lambda w: jnp.ndim(w) >= 2, params)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": sgd, "adamw": adamw, "muon": muon}


def by_name(name: str, lr: Schedule | float | None = None, **options: Any) -> Optimizer:
    """An optimizer by its name.

    Raises:
        ValueError: unknown name; the nearest is suggested.
    """
    make = choose(name, OPTIMIZERS, "optimizer")
    return make(**options) if lr is None else make(lr, **options)


if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    __getattr__ = lacking(__name__, [*OPTIMIZERS, *SCHEDULES, "Optimizer", "Schedule"])
