"""Optimizers by name, over optax; their rates come in as data, so that no schedule recompiles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from cnnkit.names import choose
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


def sgd(lr: Schedule | float = 0.05, *, momentum: float = 0.9, nesterov: bool = False) -> Optimizer:
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


def muon(
    lr: Schedule | float = 0.05, *, momentum: float = 0.95, rest: float = 0.5, steps: int = 5
) -> Optimizer:
    """Muon on filters and matrices: momentum, made orthogonal by Newton-Schulz (Jordan et al. 2024).

    Vectors (biases, norms) go by Nesterov SGD at ``rest`` times the rate.

    Args:
        lr: a number or a schedule.
        momentum: of both.
        rest: factor on the rate of what is not orthogonalized.
        steps: Newton-Schulz iterations.
    """
    fraction("muon", momentum=momentum)
    not_negative("muon", rest=rest)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"muon: steps is {steps!r}; it must be a whole number of at least 1")

    def transform(lr, m):
        filters = optax.chain(
            optax.contrib.scale_by_muon(
                ns_steps=steps, beta=m, nesterov=True, weight_dimension_numbers=_filter_axes
            ),
            optax.scale_by_learning_rate(lr),
        )
        plain = optax.chain(optax.trace(m, nesterov=True), optax.scale_by_learning_rate(lr * rest))
        return optax.partition({"filters": filters, "rest": plain}, _filters_or_rest)

    config = {"momentum": momentum, "rest": rest, "steps": steps}
    return Optimizer("muon", config, as_schedule(lr), momentum, transform)


def _filters(params: Any) -> Any:
    return jax.tree.map(lambda w: jnp.ndim(w) >= 2, params)


def _filters_or_rest(params: Any) -> Any:
    return jax.tree.map(lambda w: "filters" if jnp.ndim(w) >= 2 else "rest", params)


def _filter_axes(params: Any) -> Any:
    axes = lambda w: optax.contrib.MuonDimensionNumbers(
        reduction_axis=tuple(range(jnp.ndim(w) - 1)), output_axis=jnp.ndim(w) - 1
    )
    masked = lambda w: isinstance(w, optax.MaskedNode)
    return jax.tree.map(lambda w: w if masked(w) else axes(w), params, is_leaf=masked)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": sgd, "adamw": adamw, "muon": muon}


def by_name(name: str, lr: Schedule | float | None = None, **options: Any) -> Optimizer:
    """An optimizer by its name.

    Raises:
        ValueError: unknown name; the nearest is suggested.
    """
    make = choose(name, OPTIMIZERS, "optimizer")
    return make(**options) if lr is None else make(lr, **options)
