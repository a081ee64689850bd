"""Looking at the clock from inside a program: when a worker's device begins and ends a piece of work."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

_WRAP = 2**30  # microseconds; whole numbers that int32 holds


def stamp(tree: Any) -> jax.Array:
    """Microseconds on the host's clock, int32, at the moment when every leaf of the tree is computed.

    From outside, the devices of one process cannot be told apart: a call returns when the last of them has
    been given all its work, and a loop whose length is data is given step by step.
    """
    return io_callback(_now, jax.ShapeDtypeStruct((), jnp.int32), number_from(tree))


def after(moment: jax.Array, value: jax.Array) -> jax.Array:
    """The value, unchanged, but not before that stamp was taken."""
    # A stamp is never negative, which the compiler cannot know.
    return jnp.where(moment < 0, jnp.zeros_like(value), value)


def seconds(begin: Any, end: Any) -> Any:
    """Seconds between two stamps, less than 17 minutes apart.

    >>> seconds(np.int32(2**30 - 500_000), np.int32(500_000)).item()
    1.0
    """
    return ((np.int64(end) - np.int64(begin)) % _WRAP) / 1e6


def _now(_: Any) -> Any:
    return np.int32(time.perf_counter_ns() // 1000 % _WRAP)


def number_from(tree: Any) -> jax.Array:
    """One number that needs every leaf of a tree to be computed."""
    firsts = [jnp.ravel(leaf)[0].astype(jnp.float32) for leaf in jax.tree.leaves(tree) if jnp.size(leaf)]
    return sum(firsts, start=jnp.float32(0))
