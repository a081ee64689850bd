"""Dropout of single elements or of whole channels."""

import jax
import jax.numpy as jnp

from cnnkit.layers.layer import Layer, stateless


def dropout(rate: float, *, channels: bool = False) -> Layer:
    """While training, elements become 0 with probability rate and the others are divided by 1 − rate.

    Args:
        rate: the fraction dropped, from 0 to below 1.
        channels: drop whole channels (the last axis) instead, as Purine's inception blocks do.

    Raises:
        ValueError: at apply, when training without a key.

    Srivastava et al. 2014; whole channels: Tompson et al. 2015.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate={rate!r}: the fraction dropped, from 0 to below 1, is needed")

    def apply(params, state, x, *, key=None, train=False):
        if not train or rate == 0:
            return x, state
        if key is None:
            raise ValueError(
                "dropout needs a key when train=True: apply(…, key=jax.random.key(0), train=True)"
            )
        shape = (len(x),) + (1,) * (x.ndim - 2) + x.shape[-1:] if channels else x.shape
        keep = jax.random.bernoulli(key, 1 - rate, shape)
        return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype)), state

    plain = stateless("dropout", lambda x: x, rate=float(rate), channels=channels)
    return Layer(plain.init, apply, plain.kind, plain.config, flops=plain.flops)
