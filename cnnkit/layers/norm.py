"""Normalization: over the batch, and over neighbouring channels."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from cnnkit.layers.activate import gate
from cnnkit.layers.dense import count, not_negative
from cnnkit.layers.layer import Layer
from cnnkit.layers.written import same_axes


def batch_norm(
    *, momentum: float = 0.9, eps: float = 1e-5, scale: bool = True, center: bool = True, lr: float = 1.0
) -> Layer:
    """y = scale · (x − mean) / √(var + eps) + shift, channel by channel (Ioffe and Szegedy 2015).

    While training, mean and variance are the batch's, computed in float32, and the running ones in the
    state become momentum · running + (1 − momentum) · batch, with the unbiased variance; otherwise the
    running ones are used.

    Args:
        momentum: how much of the running statistics a step keeps.
        eps: added to the variance.
        scale: whether there is a learned factor.
        center: whether there is a learned shift.
        lr: factor on the learning rate of both.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum!r}: the part kept, from 0 to below 1, is needed")
    if not eps > 0:
        raise ValueError(f"eps={eps!r}: a number above 0 is needed")

    def init(key, shape):
        c = shape[-1]
        params = {}
        if scale:
            params["scale"] = jnp.ones(c)
        if center:
            params["shift"] = jnp.zeros(c)
        return params, {"mean": jnp.zeros(c), "var": jnp.ones(c)}, shape

    def moved(state, mean, var, n):
        unbiased = var * (n / max(n - 1, 1))
        return {
            "mean": momentum * state["mean"] + (1 - momentum) * mean,
            "var": momentum * state["var"] + (1 - momentum) * unbiased,
        }

    def apply(params, state, x, *, key=None, train=False):
        mean, var = state["mean"], state["var"]
        if train:
            mean, var, n = _moments(x, state["mean"])
            state = moved(state, mean, var, n)
        factor = lax.rsqrt(var + eps)
        if scale:
            factor = factor * params["scale"]
        shift = -mean * factor
        if center:
            shift = shift + params["shift"]
        return (x.astype(jnp.float32) * factor + shift).astype(x.dtype), state

    def fused(after):
        function = gate(after[0])
        # On a CPU computing twice costs more than to write and read.
        if function is None or jax.default_backend() == "cpu":
            return None

        def both(params, state, x, *, key=None, train=True):
            if not train:  # nothing is kept for a backward pass
                y, _ = apply(params, state, x)
                return after[0].apply((), (), y)[0], state
            c = x.shape[-1]
            weights = params.get("scale", jnp.ones(c)), params.get("shift", jnp.zeros(c))
            y, mean, var = _gated(function, eps, *same_axes(x, state["mean"], *weights))
            return y, moved(state, mean, var, _count(x))

        return both, 1

    config = {"momentum": momentum, "eps": eps, "scale": scale, "center": center}
    return Layer(
        init,
        apply,
        "batch_norm",
        config,
        flops=lambda shape, out: 2 * _size(out),
        lr=not_negative(lr, "lr"),
        title="batch_norm",
        fused=fused,
    )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gated(function, eps, x, about, scale, shift):
    """(gate of the normalized x, mean, biased variance); x is all that the backward pass needs of this size."""
    mean, var, _ = _moments(x, about)
    factor = scale * lax.rsqrt(var + eps)
    y = function.value((x.astype(jnp.float32) - mean) * factor + shift)
    return y.astype(x.dtype), mean, var


def _gated_forward(function, eps, x, about, scale, shift):
    y, mean, var = _gated(function, eps, x, about, scale, shift)
    return (y, mean, var), (x, mean, var, scale, shift)


def _gated_backward(function, eps, saved, changes):
    x, mean, var, scale, shift = saved
    dy, dmean, dvar = changes
    inverse, n = lax.rsqrt(var + eps), _count(x)

    def before(x, dy):
        unit = (x.astype(jnp.float32) - mean) * inverse
        return unit, dy.astype(jnp.float32) * function.slope(unit * scale + shift)

    # Both sums come of one dz, and dx of another: computed from what is read anyway, where a shared one would be
    # written in float32 and read. Behind barriers the compiler does not see that they are the same, nor that dy may be
    # a sum, which one of them would compute and the other wait for.
    axes, (x, dy) = tuple(range(x.ndim - 1)), lax.optimization_barrier((x, dy))
    unit, dz = before(x, dy)
    dshift, dscale = _both_sums(dz, dz * unit, axes)
    x, dy, total, along = lax.optimization_barrier((x, dy, dshift, dscale))
    unit, dz = before(x, dy)
    dx = scale * inverse * (dz - (total + unit * along) / n) + (dmean + 2 * dvar * unit / inverse) / n
    return dx.astype(x.dtype), jnp.zeros_like(mean), dscale, dshift


_gated.defvjp(_gated_forward, _gated_backward)


def _both_sums(a, b, axes):
    """The sums of two arrays over the same axes, by one pass over what they are computed from."""
    both = lax.complex(a, b).sum(axes)
    return both.real, both.imag


def _count(x):
    return x.size // x.shape[-1]


def _moments(x, about):
    """Mean and biased variance of each channel in float32, and how many elements they are over."""
    axes, half = tuple(range(x.ndim - 1)), x.dtype != jnp.float32
    x, n = x.astype(jnp.float32), _count(x)
    if half:
        # One pass over memory. Taken about the running mean, the difference keeps more digits than x has.
        about = lax.stop_gradient(about)
        x = x - about
        mean = x.mean(axes)
        return mean + about, jnp.maximum(jnp.square(x).mean(axes) - jnp.square(mean), 0), n
    mean = x.mean(axes)
    # Two passes: E[x²] − E[x]² loses all digits where the mean is large beside the deviation.
    return mean, jnp.square(x - mean).mean(axes), n


def lrn(size: int = 5, *, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75) -> Layer:
    """y_c = x_c / (k + alpha · Σ_j x_j²)^beta, j over the size channels around c (Krizhevsky et al. 2012).

    Args:
        size: channels in the window, odd.
        k: constant in the denominator.
        alpha: factor on the sum of squares (not divided by size).
        beta: exponent.
    """
    if count(size, "size") % 2 == 0:
        raise ValueError(f"size={size}: an odd number of channels is needed, so that the window has a middle")
    if not k > 0:
        raise ValueError(f"k={k!r}: a number above 0 is needed")

    def apply(params, state, x, *, key=None, train=False):
        # On a CPU powers cost more than to write and read them.
        function = _lrn if jax.default_backend() == "cpu" else _lrn_from_inputs
        return function(x, size, k, alpha, beta), state

    config = {"size": size, "k": k, "alpha": alpha, "beta": beta}
    return Layer(
        lambda key, shape: ((), (), shape),
        apply,
        "lrn",
        config,
        flops=lambda shape, out: (2 * size + 4) * _size(out),
    )


def _lrn(x, size, k, alpha, beta):
    return (x * _lrn_sum(x, size, k, alpha) ** -beta).astype(x.dtype)


def _lrn_sum(x, size, k, alpha):
    return k + alpha * _over_window(jnp.square(x.astype(jnp.float32)), size)


def _over_window(x, size):
    return lax.reduce_window(x, 0.0, lax.add, (1,) * (x.ndim - 1) + (size,), (1,) * x.ndim, "SAME")


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _lrn_from_inputs(x, size, k, alpha, beta):
    """The same; its gradient is made from x and dy alone, where derived it would keep powers in float32."""
    return _lrn(x, size, k, alpha, beta)


def _lrn_forward(x, size, k, alpha, beta):
    x = lax.optimization_barrier(x)  # read by a window of channels, so not to be made anew for each
    return _lrn(x, size, k, alpha, beta), x


def _lrn_backward(size, k, alpha, beta, x, dy):
    # Behind a barrier the compiler does not see that it has had the sum before, and would have had to keep it.
    x = lax.optimization_barrier(x)
    wide, total, dy = x.astype(jnp.float32), _lrn_sum(x, size, k, alpha), dy.astype(jnp.float32)
    # Read by a window around each pixel, so not to be made anew for each, and written in the type of the images.
    part = lax.optimization_barrier((dy * wide * total ** (-beta - 1)).astype(x.dtype)).astype(jnp.float32)
    dx = dy * total**-beta - (2 * alpha * beta) * wide * _over_window(part, size)
    return (dx.astype(x.dtype),)


_lrn_from_inputs.defvjp(_lrn_forward, _lrn_backward)


def _size(shape):
    total = 1
    for n in shape:
        total *= n
    return total
