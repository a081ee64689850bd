"""A network's parameters one by one: whose each is, its own optimizer state and step, its pieces and their turns."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from cnnkit.layers import Layer
from cnnkit.train.optim import Optimizer


@dataclass(frozen=True)
class Part:
    """One parameter.

    Args:
        name: of it, unique in the network.
        shape: its own.
        decay: its layer's L2 decay, where it has one.
        rate: its layer's factor on the learning rate.
    """

    name: str
    shape: tuple[int, ...]
    decay: float
    rate: float

    @property
    def size(self) -> int:
        """How many floats it has."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    def step(self, optimizer: Optimizer) -> Callable[..., tuple[jax.Array, Any]]:
        """``step(weight, state, lr, momentum, *pieces) -> (weight, state)``, pieces [1, …] of the mean gradient."""

        def step(weight, state, lr, momentum, *pieces):
            gradient = jnp.concatenate([piece[0] for piece in pieces]).reshape(self.shape)
            if self.decay:
                gradient = gradient + self.decay * weight
            new, state = optimizer.update(gradient, state, weight, lr, momentum)
            return (new if self.rate == 1.0 else weight + self.rate * (new - weight)), state

        return step


def parts(net: Layer, params: Any, names: Sequence[str]) -> list[Part]:
    """The network's parameters, in the order of ``jax.tree.leaves(params)``, named so."""
    owners = _owners(net, params)
    return [
        Part(name, tuple(weight.shape), layer.decay if key == "w" else 0.0, layer.lr)
        for name, (layer, key, weight) in zip(names, owners, strict=True)
    ]


def _owners(net: Layer, params: Any) -> list[tuple[Layer, Any, Any]]:
    if net.parts:
        return [one for part, own in zip(net.parts, params, strict=True) for one in _owners(part, own)]
    found = jax.tree_util.tree_leaves_with_path(params)
    return [(net, getattr(path[-1], "key", None) if path else None, weight) for path, weight in found]


def split(optimizer: Optimizer, params: Any, state: Any) -> list[Any]:
    """The optimizer's state as one for each parameter, in the order of ``jax.tree.leaves(params)``.

    A state holds trees like the parameters, of which each parameter gets its own leaf, and counters, which
    all get.
    """
    whole = dict(jax.tree_util.tree_leaves_with_path(state))
    made = []
    for path, weight in jax.tree_util.tree_leaves_with_path(params):
        like = jax.eval_shape(optimizer.init, weight)
        own = lambda at, _, path=path: whole[(*at, *path)] if (*at, *path) in whole else whole[at]
        made.append(jax.tree_util.tree_map_with_path(own, like))
    return made


def join(optimizer: Optimizer, params: Any, states: Sequence[Any], like: Any) -> Any:
    """What `split` took apart, together again.

    Args:
        states: one for each parameter.
        like: a state of the whole.
    """
    found: dict[Any, Any] = {}
    for (path, _), state in zip(jax.tree_util.tree_leaves_with_path(params), states, strict=True):
        for at, leaf in jax.tree_util.tree_leaves_with_path(state):
            found[(*at, *path)] = found[at] = leaf
    return jax.tree_util.tree_map_with_path(lambda at, _: found[at], like)


def pieces(size: int, most: int) -> list[tuple[int, int]]:
    """(start, stop) of pieces as equal as can be.

    >>> pieces(10, 4)
    [(0, 3), (3, 6), (6, 10)]
    """
    count = -(-size // most) if most else 1
    edges = [size * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def turns(ready: Mapping[Any, float], seconds: Mapping[Any, float]) -> list[Any]:
    """An order for what must take turns: whenever one has ended, the first named of those that are there.

    Args:
        ready: when each is there; the more urgent are named first.
        seconds: how long each takes.

    >>> turns({"first layer": 2.0, "last layer, 0": 0.0, "last layer, 1": 0.0}, dict.fromkeys(
    ...     ["first layer", "last layer, 0", "last layer, 1"], 2.0))
    ['last layer, 0', 'first layer', 'last layer, 1']
    """
    left, now, order = list(ready), 0.0, []
    while left:
        now = max(now, min(ready[one] for one in left))
        pick = next(one for one in left if ready[one] <= now)
        left.remove(pick)
        order.append(pick)
        now += seconds[pick]
    return order
