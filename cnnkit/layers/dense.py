"""Fully connected layers, flattening, and a scale and bias for every element."""

import math

import jax.numpy as jnp

from cnnkit.layers.initial import Initial, check_initial, initial_weights
from cnnkit.layers.layer import Layer


def dense(
    features: int, *, bias: bool = True, decay: float = 0.0, lr: float = 1.0, init: Initial = "lecun"
) -> Layer:
    """y = x·w + b, where x is flattened first: [B, …] -> [B, features].

    Args:
        features: number of outputs.
        bias: whether to add b.
        decay: strength of the L2 penalty decay/2 · ‖w‖².
        lr: factor on the learning rate.
        init: initial weights, see `check_initial`.

    >>> import jax
    >>> params, state, shape = dense(10).init(jax.random.key(0), (4, 4, 2))
    >>> params["w"].shape, shape
    ((32, 10), (10,))
    """
    features = count(features, "features")
    init = check_initial(init)

    def start(key, shape):
        fan_in = math.prod(shape)
        params = {"w": initial_weights(init, key, (fan_in, features), fan_in, features)}
        if bias:
            params["b"] = jnp.zeros(features)
        return params, (), (features,)

    def apply(params, state, x, *, key=None, train=False):
        y = x.reshape(len(x), -1) @ params["w"].astype(x.dtype)
        return y + params["b"].astype(x.dtype) if bias else y, state

    return Layer(
        start,
        apply,
        "dense",
        {"features": features, "bias": bias, "init": init},
        flops=lambda shape, out: (2 * math.prod(shape) + bias) * features,
        decay=not_negative(decay, "decay"),
        lr=not_negative(lr, "lr"),
        title=f"dense {features}" + ("" if bias else " bias=False"),
    )


def flatten() -> Layer:
    """[B, …] -> [B, F]."""
    return Layer(
        lambda key, shape: ((), (), (math.prod(shape),)),
        lambda params, state, x, *, key=None, train=False: (x.reshape(len(x), -1), state),
        "flatten",
    )


def affine(*, decay: float = 0.0, lr: float = 1.0) -> Layer:
    """y = w ⊙ x + b with a weight and a bias for every element of x (CUDA-CNN's layer ONE).

    Args:
        decay: strength of the L2 penalty decay/2 · ‖w‖².
        lr: factor on the learning rate.
    """

    def apply(params, state, x, *, key=None, train=False):
        return x * params["w"].astype(x.dtype) + params["b"].astype(x.dtype), state

    return Layer(
        lambda key, shape: ({"w": jnp.ones(shape), "b": jnp.zeros(shape)}, (), shape),
        apply,
        "affine",
        flops=lambda shape, out: 2 * math.prod(out),
        decay=not_negative(decay, "decay"),
        lr=not_negative(lr, "lr"),
    )


def count(value: int, what: str) -> int:
    """A whole number from 1 on, or a ValueError that says so."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{what}={value!r}: a whole number from 1 on is needed")
    return value


def not_negative(value: float, what: str) -> float:
    """A number from 0 on, or a ValueError that says so."""
    if not value >= 0:
        raise ValueError(f"{what}={value!r}: a number from 0 on is needed")
    return float(value)
