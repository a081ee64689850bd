"""Optimizers against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import nets
from cnnkit.data import from_arrays, load
from cnnkit.train import optim
from cnnkit.train.report import Silent
from cnnkit.train.run import Run

PARAMS = {"w": jnp.array([[1.0, -2.0], [0.5, 4.0]]), "b": jnp.array([1.0, 3.0])}
GRADS = {"w": jnp.array([[0.5, 1.0], [-1.0, 2.0]]), "b": jnp.array([2.0, -1.0])}


def steps(optimizer, *rates, grads=GRADS):
    """Parameters after a step at each (lr, momentum)."""
    params, state = PARAMS, optimizer.init(PARAMS)
    found = []
    for lr, momentum in rates:
        params, state = optimizer.update(grads, state, params, jnp.float32(lr), jnp.float32(momentum))
        found.append(params)
    return found


def test_sgd_with_momentum():
    first, second, third = steps(optim.sgd(0.1, momentum=0.5), (0.1, 0.5), (0.1, 0.5), (0.2, 0.75))
    # v: 2, 0.5·2 + 2 = 3, 0.75·3 + 2 = 4.25; b falls by 0.2, 0.3, 0.85
    np.testing.assert_allclose([p["b"][0] for p in (first, second, third)], [0.8, 0.5, -0.35], rtol=1e-6)
    np.testing.assert_allclose(third["w"], PARAMS["w"] - 0.5 * (0.2 + 0.3 + 0.85) * GRADS["w"], rtol=1e-6)


def test_sgd_with_nesterov_looks_one_step_ahead():
    first, second = steps(optim.sgd(nesterov=True), (0.1, 0.5), (0.1, 0.5))
    # g + m·v with v = 2, then 3: 3, 3.5
    np.testing.assert_allclose([first["b"][0], second["b"][0]], [0.7, 0.35], rtol=1e-6)


def test_sgd_without_momentum_is_gradient_descent():
    first, second = steps(optim.sgd(momentum=0), (0.1, 0), (0.1, 0))
    np.testing.assert_allclose([first["b"][0], second["b"][0]], [0.8, 0.6], rtol=1e-6)


def test_adamw_by_hand_and_decay_on_weights_alone():
    b1, b2, eps, lr, decay = 0.9, 0.99, 1e-8, 0.01, 0.1
    found = steps(optim.adamw(b1=b1, b2=b2, weight_decay=decay), (lr, b1), (lr, b1), grads=GRADS)
    for name, rate in (("w", decay), ("b", 0.0)):
        w, m, v = np.float64(PARAMS[name]), 0.0, 0.0
        for t, params in enumerate(found, start=1):
            g = np.float64(GRADS[name])
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            w = w - lr * (m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + rate * w)
            np.testing.assert_allclose(params[name], w, rtol=1e-5)


def test_muon_makes_a_filters_update_nearly_orthogonal_and_vectors_go_by_sgd():
    key = jax.random.key(0)
    params = {"w": jax.random.normal(key, (3, 3, 4, 8)), "b": jnp.zeros(8)}
    grads = {"w": jax.random.normal(jax.random.key(1), (3, 3, 4, 8)), "b": jnp.arange(8.0)}
    optimizer = optim.muon(0.1, momentum=0.5, rest=0.25)
    new, _ = optimizer.update(grads, optimizer.init(params), params, jnp.float32(0.1), jnp.float32(0.5))
    moved = np.asarray(params["w"] - new["w"]).reshape(36, 8)
    size = np.linalg.svd(moved, compute_uv=False)
    assert size.max() / size.min() < 2 < np.linalg.cond(np.asarray(grads["w"]).reshape(36, 8))
    # Nesterov: g + m·v = 1.5 g, at a quarter of the rate
    np.testing.assert_allclose(new["b"], -0.1 * 0.25 * 1.5 * grads["b"], rtol=1e-6)


@pytest.mark.parametrize("make", [optim.sgd, optim.adamw, optim.muon])
def test_descriptions_build_the_same_optimizer(make):
    from cnnkit.train.load import optimizer as rebuilt

    for schedule in (
        0.1,
        optim.stages((0.1, 0.9, 2), (0.05, 0.8, 1)),
        optim.cosine(0.1, warmup=1),
        optim.one_cycle(0.1),
    ):
        was = make(schedule)
        now = rebuilt(was.describe())
        assert now.describe() == was.describe()
        for a, b in zip(was.rates(np.arange(4.0), 4), now.rates(np.arange(4.0), 4), strict=True):
            np.testing.assert_array_equal(a, b)


def test_by_name():
    assert optim.by_name("sgd", 0.1, momentum=0.5).describe() == optim.sgd(0.1, momentum=0.5).describe()
    with pytest.raises(ValueError, match="unknown optimizer 'adamn': did you mean 'adamw'"):
        optim.by_name("adamn")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: optim.sgd(momentum=1.0), "sgd: momentum is 1.0; it must be at least 0 and below 1"),
        (lambda: optim.sgd(momentum=-0.5), "sgd: momentum is -0.5; it must be at least 0 and below 1"),
        (lambda: optim.adamw(b2=1), "adamw: b2 is 1; it must be at least 0 and below 1"),
        (lambda: optim.adamw(weight_decay=-1), "adamw: weight_decay is -1; it must be 0 or more"),
        (lambda: optim.muon(momentum=2), "muon: momentum is 2; it must be at least 0 and below 1"),
        (lambda: optim.muon(rest=-1), "muon: rest is -1; it must be 0 or more"),
        (lambda: optim.muon(steps=0), "muon: steps is 0; it must be a whole number of at least 1"),
    ],
)
def test_settings_that_cannot_be_say_so(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_usual_rate_trains_a_network_that_nothing_normalizes():
    """From some seeds LeNet does not learn at five times the rate."""
    digits = load("digits")

    def wide(split):
        return np.pad(split.images.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2), (0, 0))), split.labels

    data = from_arrays(*wide(digits.train), *wide(digits.test), name="wide digits")
    run = Run(nets.lenet(), data, batch=32, epochs=2, evaluate_every=2, watch=Silent())
    for seed in (1, 3):
        assert run.again(seed).fit().history[-1]["test_accuracy"] > 0.9
