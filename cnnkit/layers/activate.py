"""Activations: functions of each element, and softmax over the last axis."""

import jax
import jax.numpy as jnp

from cnnkit.layers.layer import Layer, stateless


def relu() -> Layer:
    """max(x, 0)."""
    return stateless("relu", jax.nn.relu)


def leaky_relu(slope: float = 0.1) -> Layer:
    """x where it is positive, slope · x elsewhere; CUDA-CNN's slope is 0.1.

    Args:
        slope: from 0 to below 1.
    """
    if not 0 <= slope < 1:
        raise ValueError(f"slope={slope!r}: a number from 0 to below 1 is needed")
    return stateless("leaky_relu", lambda x: jnp.maximum(x, slope * x), slope=float(slope))


def gelu() -> Layer:
    """x · Φ(x), with Φ the normal distribution's cumulative function (Hendrycks and Gimpel 2016)."""
    return stateless("gelu", lambda x: jax.nn.gelu(x, approximate=False))


def sigmoid() -> Layer:
    """1 / (1 + exp(−x))."""
    return stateless("sigmoid", jax.nn.sigmoid)


def tanh() -> Layer:
    """tanh(x)."""
    return stateless("tanh", jnp.tanh)


def scaled_tanh() -> Layer:
    """1.7159 · tanh(2x/3), which keeps unit variance (LeCun et al. 1998; CUDA-CNN's NL_TANH)."""
    return stateless("scaled_tanh", lambda x: 1.7159 * jnp.tanh(x * (2 / 3)))


def softmax() -> Layer:
    """exp(x_i) / Σ_j exp(x_j) over the last axis. The losses take logits: leave it out when training."""
    return stateless("softmax", jax.nn.softmax)
