"""Losses of each example, the L2 penalty, and what counts as a right answer."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from cnnkit.layers.layer import Layer, Params
from cnnkit.layers.walk import walk
from cnnkit.names import lacking


def cross_entropy(
    logits: jax.Array, labels: jax.Array, weight: jax.Array | None = None, *, smoothing: float = 0.0
) -> jax.Array:
    """−Σ_c t_c · log softmax(logits)_c of each example, with t = (1 − s) · one-hot + s / classes.

    Args:
        logits: [B, classes], computed with in float32 whatever their type.
        labels: [B], whole numbers; NaN comes of one that is no class.
        weight: [B], multiplied in; 0 for the padding of a last mini-batch.
        smoothing: s, the part of the target spread over all classes (Szegedy et al. 2016).

    Returns:
        [B] float32; the mean over a padded mini-batch is ``losses.sum() / weight.sum()``.

    Raises:
        ValueError: labels of another shape or type.

    >>> loss = cross_entropy(jnp.zeros((1, 4)), jnp.array([2]))
    >>> f"{loss[0]:.4f}"
    '1.3863'
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing!r}: the part of the target, from 0 to below 1, is needed")
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"cross_entropy got logits {logits.dtype}{list(logits.shape)} and labels {labels.dtype}{list(labels.shape)}; "
            "logits [B, classes] and labels [B], whole numbers, are needed (of one-hot rows take labels.argmax(-1))"
        )
    wide = logits.astype(jnp.float32)
    above = wide - jax.lax.stop_gradient(wide.max(-1, keepdims=True))
    # Picked by comparing: the gradient of an index would be scattered into zeros.
    own = jnp.where(labels[:, None] == jnp.arange(wide.shape[-1]), above, 0).sum(-1)
    own = jnp.where((labels >= 0) & (labels < wide.shape[-1]), own, jnp.nan)
    target = (1 - smoothing) * own + smoothing * above.mean(-1) if smoothing else own
    loss = jnp.log(jnp.exp(above).sum(-1)) - target
    return loss if weight is None else loss * weight


def squared_error(outputs: jax.Array, targets: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """½ Σ_i (output_i − target_i)² of each example.

    Args:
        outputs: [B, …].
        targets: of the same shape, or [B] whole numbers that stand for one-hot rows.
        weight: [B], multiplied in.
    """
    outputs = outputs.astype(jnp.float32)
    if targets.ndim == 1 and outputs.ndim == 2:
        targets = jax.nn.one_hot(targets, outputs.shape[-1])
    loss = 0.5 * jnp.square(outputs - targets).sum(tuple(range(1, outputs.ndim)))
    return loss if weight is None else loss * weight


def l2(net: Layer, params: Params) -> jax.Array:
    """Σ over layers of decay/2 · ‖w‖², by each layer's own decay; biases and norms have none."""
    terms = [
        0.5 * layer.decay * jnp.square(p["w"].astype(jnp.float32)).sum()
        for _, layer, p in walk(net, params)
        if layer.decay and "w" in p
    ]
    return sum(terms, start=jnp.zeros(()))


def correct(logits: jax.Array, labels: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """1 for each example whose largest logit is its label's, else 0; [B] float32, times the weight."""
    right = (logits.argmax(-1) == labels).astype(jnp.float32)
    return right if weight is None else right * weight


if not TYPE_CHECKING:  # or type checkers would take any name for one of these
    __getattr__ = lacking(__name__, ["cross_entropy", "squared_error", "l2", "correct"])
