"""Initial weights, by name or by distribution."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from cnnkit.names import choose

Shape = tuple[int, ...]
Initial = str | tuple[str, float]

_NAMED: dict[str, Callable[[jax.Array, Shape, int, int], jax.Array]] = {
    "he": lambda key, shape, fan_in, fan_out: _normal(key, shape, math.sqrt(2 / fan_in)),
    "lecun": lambda key, shape, fan_in, fan_out: _normal(key, shape, math.sqrt(1 / fan_in)),
    "identity": lambda key, shape, fan_in, fan_out: _identity(key, shape, math.sqrt(1 / fan_in)),
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
            ±√(6/(fan_in + fan_out))), ``"identity"`` (the first filters hand one channel on each, the rest is
            uniform, ±1/√fan_in; Jordan 2024), ``("normal", σ)`` or ``("uniform", a)`` for ±a.

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
    return _drawn(jax.random.normal, key, shape, deviation)


def _uniform(key, shape, bound):
    return _drawn(_around_zero, key, shape, bound)


def _around_zero(key, shape, dtype):
    return jax.random.uniform(key, shape, dtype, -1, 1)


# A generator takes half a second to compile for each shape of weights. So numbers are drawn by the chunk, of a
# few sizes, and only cut to shape for each.
_CHUNKS = ((1 << 14, 1 << 18), (1 << 20, 1 << 25), (1 << 24, math.inf))


def _identity(key, shape, bound):
    if len(shape) != 4:
        raise ValueError(
            f"init='identity' is for the filters of a conv, not for weights of {len(shape)} dimensions"
        )
    weights, kept = _uniform(key, shape, bound), min(shape[2:])
    middle = jnp.zeros((*shape[:3], kept)).at[shape[0] // 2, shape[1] // 2].set(jnp.eye(shape[2], kept))
    return weights.at[..., :kept].set(middle)


def _drawn(draw, key, shape, scale):
    count = math.prod(shape)
    size = next(size for size, most in _CHUNKS if count <= most)
    return _cut([_chunk(draw, size, key, i) for i in range(-(-count // size))], scale, shape)


@partial(jax.jit, static_argnums=(0, 1))
def _chunk(draw, size, key, i):
    return draw(jax.random.fold_in(key, i), (size,), jnp.float32)


@partial(jax.jit, static_argnums=2)
def _cut(chunks, scale, shape):
    return scale * jnp.concatenate(chunks)[: math.prod(shape)].reshape(shape)
