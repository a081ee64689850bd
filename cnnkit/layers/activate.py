"""Activations: functions of each element, and softmax over the last axis."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.layers.layer import Layer, is_own, own, stateless


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def rectify(x: jax.Array, slope: float = 0.0) -> jax.Array:
    """x where it is positive, slope · x elsewhere; the gradient at 0 is the slope's."""
    return jnp.where(x > 0, x, slope * x) if slope else jnp.maximum(x, 0)


@rectify.defjvp
def _rectify_jvp(slope, primals, tangents):
    # Read from the output, which has the input's sign: the input need not be kept for the backward pass.
    y = rectify(primals[0], slope)
    return y, jnp.where(y > 0, tangents[0], slope * tangents[0])


@jax.custom_jvp
def rectify_kept(x: jax.Array) -> jax.Array:
    """max(x, 0) whose gradient asks the output in earnest.

    XLA sees that an output above 0 had an input above 0, and asks that one, which then is kept as well; and a
    convolution on a GPU can no longer rectify what it gives. Where nothing rectifies by the way it is the better choice.
    """
    return jnp.maximum(x, 0)


@rectify_kept.defjvp
def _rectify_kept_jvp(primals, tangents):
    y = jnp.maximum(primals[0], 0)
    return y, jnp.where(lax.optimization_barrier(y) > 0, tangents[0], 0)


def relu() -> Layer:
    """max(x, 0)."""
    return _rectifier("relu", rectify)


def leaky_relu(slope: float = 0.1) -> Layer:
    """x where it is positive, slope · x elsewhere; CUDA-CNN's slope is 0.1.

    Args:
        slope: from 0 to below 1.
    """
    if not 0 <= slope < 1:
        raise ValueError(f"slope={slope!r}: a number from 0 to below 1 is needed")
    return _rectifier("leaky_relu", lambda x: rectify(x, slope), slope=float(slope))


def _rectifier(kind: str, function: Callable[[jax.Array], jax.Array], **config: Any) -> Layer:
    """A rectifier, which a max-pooling after it goes before: to the bit the same, on fewer and smaller images."""

    def fused(after):
        if not is_own(after[0], "max_pool"):
            return None

        def both(params, state, x, *, key=None, train=True):
            return function(after[0].apply((), (), x, train=train)[0]), state

        return both, 1

    return own(replace(stateless(kind, function, **config), fused=fused))


@jax.custom_jvp
def normal_gate(x: jax.Array) -> jax.Array:
    """x · Φ(x), computed in float32."""
    wide = x.astype(jnp.float32)
    return (wide * _normal(wide)[0]).astype(x.dtype)


@normal_gate.defjvp
def _normal_gate_jvp(primals, tangents):
    # From x alone: derived, it would keep Φ and the density for the backward pass, two more images in memory.
    return normal_gate(primals[0]), _sloped(_normal_slope, primals[0], tangents[0])


def _normal_slope(x):
    below, bell = _normal(x)
    return below + x * bell / math.sqrt(2 * math.pi)


@jax.custom_jvp
def _normal(x):
    """(Φ(x), exp(−x²/2)), of which the first needs the second; Φ to 10⁻⁷ (Abramowitz and Stegun 1964, 7.1.26).

    Computed by erf alone, the gate takes longer on a GPU than to read and to write it.
    """
    bell, far = jnp.exp(-0.5 * x * x), 1 + 0.3275911 * math.sqrt(0.5) * jnp.abs(x)
    # A GPU has an instruction for the root's reciprocal, and none for a quotient.
    t = 1 / far if jax.default_backend() == "cpu" else jnp.square(lax.rsqrt(far))
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * bell
    return jnp.where(x > 0, 1 - tail, tail), bell


@_normal.defjvp
def _normal_jvp(primals, tangents):
    # The formula's own derivative is wrong at 0, where its two halves meet.
    (x,), (along,) = primals, tangents
    below, bell = _normal(x)
    return (below, bell), (along * bell / math.sqrt(2 * math.pi), -along * x * bell)


def _sloped(slope, x, tangent):
    # Transposed, the gradient before the activation comes out behind the barrier, in the type of the images. Without
    # it XLA on a GPU writes the product in float32, wherever several read it, as a batch norm before does; and what
    # both passes compute of x, to save computing it again.
    if jax.default_backend() != "cpu":
        x, tangent = lax.optimization_barrier(x), lax.optimization_barrier(tangent)
    return (tangent * slope(x.astype(jnp.float32))).astype(tangent.dtype)


def gelu() -> Layer:
    """x · Φ(x), with Φ the normal distribution's cumulative function (Hendrycks and Gimpel 2016)."""
    return own(stateless("gelu", normal_gate))


@jax.custom_jvp
def logistic_gate(x: jax.Array) -> jax.Array:
    """x · σ(x), computed in float32."""
    wide = x.astype(jnp.float32)
    return (wide * lax.logistic(wide)).astype(x.dtype)


@logistic_gate.defjvp
def _logistic_gate_jvp(primals, tangents):
    return logistic_gate(primals[0]), _sloped(_logistic_slope, primals[0], tangents[0])


def _logistic_slope(x):
    part = lax.logistic(x)
    return part * (1 + x * (1 - part))


def silu() -> Layer:
    """x / (1 + exp(−x)), also called swish (Elfwing et al. 2017)."""
    return own(stateless("silu", logistic_gate))


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


class Gate(NamedTuple):
    """An activation and its derivative, as functions of float32 arrays."""

    value: Callable[[jax.Array], jax.Array]
    slope: Callable[[jax.Array], jax.Array]


def gate(layer: Layer) -> Gate | None:
    """What an activation layer computes, where a norm before it had better know; None for any other layer.

    Rectifiers are none of them: a compiler computes these anew by itself wherever it needs them.

    >>> rise = gate(silu())
    >>> rise.value(jnp.float32(0)).item(), rise.slope(jnp.float32(0)).item()
    (0.0, 0.5)
    """
    known = {"gelu": Gate(normal_gate, _normal_slope), "silu": Gate(logistic_gate, _logistic_slope)}
    return known[layer.kind] if is_own(layer, *known) else None
