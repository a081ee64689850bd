"""The whitening layer against NumPy's second moments, and how the state comes by what it measures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import Layer, branch, dense, measure, rebuild, relu, serial, whiten

IMAGES = np.random.default_rng(0).random((40, 6, 5, 2)).astype(np.float32)


def patches(images):
    """Every 2×2 patch [n, 2·2·C], rows, columns and channels in this order."""
    taps = [images[:, i : i + 5, j : j + 4] for i in (0, 1) for j in (0, 1)]
    return np.stack(taps, 3).reshape(-1, 8).astype(np.float64)


def test_its_outputs_have_the_identity_as_second_moments_and_their_negatives_beside_them():
    layer = whiten(2, bias=False, eps=1e-9)
    params, state, shape = layer.init(jax.random.key(0), (6, 5, 2))
    assert (params, shape) == ({}, (5, 4, 16))
    state = measure(layer, params, state, jnp.asarray(IMAGES))
    y, same = layer.apply(params, state, jnp.asarray(IMAGES), train=True)
    assert same is state
    half = np.asarray(y[..., :8], np.float64).reshape(-1, 8)
    np.testing.assert_allclose(half.T @ half / len(half), np.eye(8), atol=1e-3)
    np.testing.assert_array_equal(y[..., 8:], -y[..., :8])


def test_filters_are_eigenvectors_by_their_deviation_the_largest_first():
    eps = 0.01
    values, vectors = np.linalg.eigh(patches(IMAGES).T @ patches(IMAGES) / len(patches(IMAGES)))
    layer = whiten(2, eps=eps)
    state = measure(layer, *layer.init(jax.random.key(0), (6, 5, 2))[:2], jnp.asarray(IMAGES))
    found = np.asarray(state["w"]).reshape(8, 16)[:, :8]
    want = (vectors / np.sqrt(values + eps))[:, ::-1]
    np.testing.assert_allclose(np.abs((found * want).sum(0)), (want**2).sum(0), rtol=1e-4)


def test_a_layer_inside_measures_what_reaches_it():
    first, inner = dense(8), Layer(
        lambda key, shape: ((), {"mean": jnp.zeros(shape)}, shape),
        lambda params, state, x, *, key=None, train=False: (x - state["mean"], state),
        "centred",
        measure=lambda state, x: {"mean": x.mean(0)},
    )  # fmt: skip
    net = serial(first, branch(relu(), inner, merge="sum"), dense(3))
    params, state, _ = net.init(jax.random.key(0), (4,))
    x = jax.random.normal(jax.random.key(1), (10, 4))
    measured = measure(net, params, state, x)
    want = first.apply(params[0], (), x)[0].mean(0)
    np.testing.assert_allclose(measured[1][1]["mean"], want, rtol=1e-6)
    plain = serial(dense(3))
    _, state, _ = plain.init(jax.random.key(0), (4,))
    assert measure(plain, None, state, x) is state


def test_it_is_built_again_and_says_what_cannot_be():
    assert rebuild(whiten((2, 3), eps=0.1).describe()).describe() == whiten((2, 3), eps=0.1).describe()
    with pytest.raises(ValueError, match=r"eps=0: a number above 0 is needed"):
        whiten(2, eps=0)
