"""Losses against plain NumPy, and the penalty on weights."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import losses
from cnnkit.layers import affine, batch_norm, branch, conv, dense, serial
from tests import reference

LOGITS = 3 * np.random.default_rng(0).standard_normal((4, 5))
LABELS = np.array([0, 4, 2, 2])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_and_its_gradient_are_the_definitions(smoothing):
    def loss(logits):
        return losses.cross_entropy(logits, jnp.asarray(LABELS), smoothing=smoothing)

    made, back = jax.vjp(loss, jnp.float32(LOGITS))
    weights = np.array([1.0, 0.5, 0, 2])
    np.testing.assert_allclose(made, reference.cross_entropy(LOGITS, LABELS, smoothing), atol=1e-5)
    want = reference.gradient(
        lambda z: reference.cross_entropy(z, LABELS, smoothing)[:, None], LOGITS, weights[:, None]
    )
    np.testing.assert_allclose(back(jnp.float32(weights))[0], want, atol=1e-5)


def test_the_gradient_of_cross_entropy_is_not_scattered():
    loss = lambda logits: losses.cross_entropy(logits, jnp.asarray(LABELS), smoothing=0.1).sum()
    assert "scatter" not in str(jax.make_jaxpr(jax.grad(loss))(jnp.float32(LOGITS)))


def test_weights_multiply_each_examples_loss():
    weight = jnp.array([1.0, 1, 0, 0])
    plain = losses.cross_entropy(jnp.float32(LOGITS), jnp.asarray(LABELS))
    np.testing.assert_array_equal(
        losses.cross_entropy(jnp.float32(LOGITS), jnp.asarray(LABELS), weight), plain * weight
    )
    right = losses.correct(jnp.float32(LOGITS), jnp.asarray(LOGITS.argmax(-1)), weight)
    np.testing.assert_array_equal(right, weight)
    ones = losses.squared_error(jnp.ones((4, 3)), jnp.zeros((4, 3)), weight)
    np.testing.assert_array_equal(ones, 1.5 * weight)


def test_large_logits_stay_finite_and_bfloat16_is_computed_in_float32():
    huge = jnp.array([[1e4, -1e4]])
    np.testing.assert_allclose(losses.cross_entropy(huge, jnp.array([1])), [2e4])
    low = losses.cross_entropy(jnp.asarray(LOGITS, jnp.bfloat16), jnp.asarray(LABELS))
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, reference.cross_entropy(LOGITS, LABELS), atol=0.05)


def test_squared_error_takes_labels_as_one_hot_rows():
    outputs = np.array([[0.5, 0.5], [0.0, 2.0]])
    np.testing.assert_allclose(losses.squared_error(jnp.float32(outputs), jnp.array([0, 1])), [0.25, 0.5])
    same = losses.squared_error(jnp.float32(outputs), jnp.array([[1.0, 0], [0, 1]]))
    np.testing.assert_allclose(same, [0.25, 0.5])


def test_correct_counts_the_largest_logit():
    logits = jnp.array([[1.0, 2, 0], [3, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(losses.correct(logits, jnp.array([1, 2, 2])), [1, 0, 1])


def test_l2_is_each_layers_decay_on_its_weights_alone():
    net = serial(
        conv(2, 1, decay=0.5), batch_norm(), branch(dense(3, decay=0.1), dense(2)), affine(decay=2), dense(1)
    )
    params, _, _ = net.init(jax.random.key(0), (2, 2, 1))
    params = jax.tree.map(lambda p: jnp.full(p.shape, 2.0), params)
    # ½ · decay · 4 for each weight: 2 of the convolution, 24 of the first path, 5 of the affine layer.
    want = 2 * (0.5 * 2 + 0.1 * 24 + 2 * 5)
    np.testing.assert_allclose(losses.l2(net, params), want, rtol=1e-6)
    gradient = jax.grad(lambda p: losses.l2(net, p))(params)
    np.testing.assert_allclose(gradient[0]["w"], jnp.ones((1, 1, 1, 2)))
    assert not gradient[0]["b"].any()
    assert not gradient[4]["w"].any()


def test_smoothing_out_of_range_is_told():
    with pytest.raises(ValueError, match=re.escape("smoothing=1: the part of the target, from 0 to below 1")):
        losses.cross_entropy(jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32), smoothing=1)


def test_labels_that_are_none_are_told_or_seen():
    logits = jnp.zeros((3, 4))
    for labels in (jnp.zeros((3, 4)), jnp.zeros(3), jnp.zeros(2, int), jnp.zeros((3, 1), int)):
        with pytest.raises(
            ValueError, match=r"logits \[B, classes\] and labels \[B\], whole numbers, are needed"
        ):
            losses.cross_entropy(logits, labels)
    with pytest.raises(ValueError, match=r"got logits float32\[3, 2, 4\]"):
        losses.cross_entropy(jnp.zeros((3, 2, 4)), jnp.zeros(3, int))
    told = losses.cross_entropy(logits, jnp.array([-1, 4, 3]), smoothing=0.1)
    assert np.isnan(told).tolist() == [True, True, False]
