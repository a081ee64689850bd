"""Muon against a Newton-Schulz iteration in NumPy, and who goes by which rule."""

import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.train import optim
from cnnkit.train.muon import orthogonalize


def newton_schulz(g, steps):
    x = g / (np.linalg.norm(g) + 1e-7)
    x = x if g.shape[0] <= g.shape[1] else x.T
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if g.shape[0] <= g.shape[1] else x.T


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("small", [0, 10**9], ids=["alike", "padded"])
def test_matrices_of_any_shapes_are_made_orthogonal_each_for_itself(small):
    given = [draw(4, 9), draw(8, 3, seed=1), draw(4, 9, seed=2), draw(5, 20, seed=3)]
    made = orthogonalize([jnp.asarray(g, jnp.float32) for g in given], 3, small)
    for found, g in zip(made, given, strict=True):
        np.testing.assert_allclose(found, newton_schulz(g, 3), rtol=2e-4, atol=2e-5)


def test_two_steps_by_hand_with_filters_that_keep_their_length():
    params = {
        "w": jnp.asarray(draw(3, 3, 2, 8), jnp.float32),
        "head": jnp.ones((4, 2)),
        "b": jnp.full(8, 2.0),
    }
    grads = {
        "w": jnp.asarray(draw(3, 3, 2, 8, seed=1), jnp.float32),
        "head": jnp.ones((4, 2)),
        "b": jnp.ones(8),
    }
    optimizer = optim.muon(
        momentum=0.5, steps=3, unit=True, matrices=0.1, rest=0.25, rest_momentum=0.8, rest_decay=0.5
    )
    state, w, v = optimizer.init(params), np.asarray(params["w"], np.float64), 0.0
    for _ in range(2):
        params, state = optimizer.update(grads, state, params, jnp.float32(0.2), jnp.float32(0.5))
        g = np.asarray(grads["w"], np.float64)
        v = 0.5 * v + g
        step = newton_schulz((g + 0.5 * v).reshape(18, 8).T, 3).T.reshape(w.shape)
        w = w * np.sqrt(8 / (w**2).sum()) - 0.2 * step
    np.testing.assert_allclose(params["w"], w, rtol=1e-4, atol=1e-5)
    # SGD at a tenth of 0.2: g + 0.8 v with v = 1, then 1.8
    np.testing.assert_allclose(params["head"], 1 - 0.02 * (1.8 + 2.44), rtol=1e-6)
    # at a quarter of it, with half of b added to the gradient: 1 + 1, then 1 + 0.91
    first = 2 - 0.05 * (2 + 0.8 * 2)
    second = first - 0.05 * ((1 + first / 2) + 0.8 * (0.8 * 2 + 1 + first / 2))
    np.testing.assert_allclose(params["b"], second, rtol=1e-6)


def test_a_rate_of_nothing_changes_nothing():
    params = {"w": jnp.asarray(draw(3, 3, 2, 4), jnp.float32), "b": jnp.ones(4)}
    optimizer = optim.muon(unit=True, rest_decay=0.1)
    new, _ = optimizer.update(params, optimizer.init(params), params, jnp.float32(0), jnp.float32(0.9))
    np.testing.assert_array_equal(new["w"], params["w"])
    np.testing.assert_array_equal(new["b"], params["b"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: optim.muon(rest_momentum=1.5),
            "muon: rest_momentum is 1.5; it must be at least 0 and below 1",
        ),
        (lambda: optim.muon(matrices=-1), "muon: matrices is -1; it must be 0 or more"),
        (lambda: optim.muon(rest_decay=-1), "muon: rest_decay is -1; it must be 0 or more"),
    ],
)
def test_settings_that_cannot_be_say_so(build, message):
    with pytest.raises(ValueError, match=message):
        build()
