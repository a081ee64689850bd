"""Initial weights, by name or by distribution."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from cnnkit.names import choose

Shape = tuple[int, ...]
Initial = str | tuple[str, float]

_NAMED: dict[str, Callable[[jax.Array, Shape, int, int], jax.Array]] = {
    "he": lambda key, shape, fan_in, fan_out: _normal(key, shape, math.sqrt(2 / fan_in)),
    "lecun": lambda key, shape, fan_in, fan_out: _normal(key, shape, math.sqrt(1 / fan_in)),
    "glorot": lambda key, shape, fan_in, fan_out: _uniform(key, shape, math.sqrt(6 / (fan_in + fan_out))),
}
_SCALED = {
    "normal": lambda key, shape, size: _normal(key, shape, size),
    "uniform": lambda key, shape, size: _uniform(key, shape, size),
}


def check_initial(init: Initial) -> Initial:
    """The given value, if it names initial weights.

    Args:
        init: ``"he"`` (normal, σ² = 2/fan_in), ``"lecun"`` (normal, σ² = 1/fan_in), ``"glorot"`` (uniform,
            ±√(6/(fan_in + fan_out))), ``("normal", σ)`` or ``("uniform", a)`` for ±a.

    Raises:
        ValueError: it does not.
    """
    if isinstance(init, str):
        choose(init, _NAMED, "initial weights (or a pair like ('normal', 0.05))")
        return init
    name, size = init
    choose(name, _SCALED, "distribution of initial weights")
    if not size > 0:
        raise ValueError(f"init={init!r}: the second number is a width and must be above 0")
    return name, float(size)


def initial_weights(init: Initial, key: jax.Array, shape: Shape, fan_in: int, fan_out: int) -> jax.Array:
    """Weights of that shape, float32, drawn as ``check_initial`` describes.

    >>> initial_weights(("uniform", 0.1), jax.random.key(0), (3, 3), 3, 3).dtype
    dtype('float32')
    """
    if isinstance(init, str):
        return _NAMED[init](key, shape, fan_in, fan_out)
    return _SCALED[init[0]](key, shape, init[1])


def _normal(key, shape, deviation):
    return deviation * jax.random.normal(key, shape, jnp.float32)


def _uniform(key, shape, bound):
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
