"""Pooling against plain NumPy: shapes, values, and where gradients go when maxima are equal."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import (
    ShapeError,
    avg_pool,
    batch_norm,
    conv,
    dense,
    global_pool,
    leaky_relu,
    max_pool,
    relu,
    serial,
)
from tests import reference

# size, stride, padding as the layer takes it, and in pixels for an image of 7 × 6
CASES = {
    "halving": ((2, 2), (2, 2), "valid", ((0, 0), (0, 0))),
    "overlapping": ((3, 3), (2, 2), "valid", ((0, 0), (0, 0))),
    "clipped": ((3, 3), (2, 2), "clip", ((0, 2), (0, 1))),
    "same": ((3, 3), (2, 2), "same", ((1, 1), (0, 1))),
    "dense": ((3, 3), (1, 1), "same", ((1, 1), (1, 1))),
    "uneven": ((2, 3), (3, 1), ((1, 0), (0, 2)), ((1, 0), (0, 2))),
    "gaps": ((2, 2), (3, 3), "valid", ((0, 0), (0, 0))),
    "whole": ((7, 6), (7, 6), "valid", ((0, 0), (0, 0))),
}


def with_ties(seed=0):
    return np.random.default_rng(seed).integers(-2, 3, (2, 7, 6, 3)).astype(np.float64)


@pytest.mark.parametrize("case", CASES)
def test_max_pool_takes_the_largest_and_gives_the_gradient_to_the_first(case):
    size, stride, padding, pads = CASES[case]
    layer = max_pool(size, stride, padding=padding)
    x = with_ties()
    want = reference.pool(x, size, stride, pads, np.max)
    dy = np.random.default_rng(1).standard_normal(want.shape)
    assert layer.init(None, x.shape[1:])[2] == want.shape[1:]

    @jax.jit
    def both(x, dy):
        y, back = jax.vjp(lambda x: layer.apply((), (), x)[0], x)
        return y, layer.apply((), (), x)[0], back(dy)[0]

    y, alone, dx = both(jnp.float32(x), jnp.float32(dy))
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(alone, want)
    np.testing.assert_allclose(dx, reference.max_pool_gradient(x, dy, size, stride, pads), atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_avg_pool_is_the_mean_over_pixels_inside_the_image(case):
    size, stride, padding, pads = CASES[case]
    layer = avg_pool(size, stride, padding=padding)
    x = np.random.default_rng(0).standard_normal((2, 7, 6, 3))
    far = np.random.default_rng(1).standard_normal(x.shape)
    want = reference.pool(x, size, stride, pads, np.mean)
    dy = np.random.default_rng(2).standard_normal(want.shape)

    @jax.jit
    def both(x, dy):
        y, back = jax.vjp(lambda x: layer.apply((), (), x)[0], x)
        return y, back(dy)[0]

    y, dx = both(jnp.float32(x), jnp.float32(dy))
    np.testing.assert_allclose(y, want, atol=1e-6)
    along = (dy * reference.pool(far, size, stride, pads, np.mean)).sum()
    np.testing.assert_allclose((np.float64(dx) * far).sum(), along, atol=1e-4)


@pytest.mark.parametrize(("n", "size", "stride"), [(24, 3, 2), (12, 3, 2), (7, 2, 2), (5, 2, 3), (9, 4, 2)])
def test_clipped_pooling_gives_one_output_for_each_stride_begun(n, size, stride):
    rows = -(-n // stride)
    assert max_pool(size, stride, padding="clip").init(None, (n, n, 1))[2] == (rows, rows, 1)


def test_a_nan_comes_through_max_pool():
    x = jnp.zeros((1, 2, 2, 1)).at[0, 1, 0, 0].set(jnp.nan)
    layer = max_pool(2)
    assert jnp.isnan(layer.apply((), (), x)[0]).all()
    assert jnp.isnan(jax.value_and_grad(lambda x: layer.apply((), (), x)[0].sum())(x)[0])


def test_global_pool_is_the_mean_of_each_channel():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    y, _ = global_pool().apply((), (), jnp.float32(x))
    np.testing.assert_allclose(y, x.mean((1, 2)), atol=1e-6)
    assert global_pool().init(None, (3, 4, 5))[2] == (5,)


@pytest.mark.parametrize("make", [max_pool, avg_pool])
def test_bfloat16_stays_bfloat16(make):
    x = jnp.asarray(with_ties(), jnp.bfloat16)
    y, back = jax.vjp(lambda x: make(2).apply((), (), x)[0], x)
    function = np.max if make is max_pool else np.mean
    want = reference.pool(with_ties(), (2, 2), (2, 2), ((0, 0), (0, 0)), function)
    assert y.dtype == back(y)[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(y), want, atol=0.01)
    y32, _ = make(2).apply((), (), jnp.float32(x))
    np.testing.assert_allclose(np.float32(y), y32, atol=0.01)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: max_pool(0), "size=0: a whole number from 1 on is needed"),
        (lambda: max_pool(2, 0), "stride=0: a whole number from 1 on is needed"),
        (
            lambda: avg_pool(2, padding="clipp"),
            "padding='clipp': give 'valid', 'same', 'clip', a number of pixels",
        ),
    ],
)
def test_wrong_settings_are_told(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


def test_shapes_that_do_not_fit_are_errors_at_init():
    with pytest.raises(ShapeError, match=re.escape("got 10, but max_pool needs an image")):
        max_pool(2).init(None, (10,))
    with pytest.raises(ShapeError, match=re.escape("got 10, but global_pool needs an image")):
        global_pool().init(None, (10,))
    text = "layer 0 (avg_pool 3×3) got 2×5×1: a window of 3 does not fit into 2 + 0 pixels of padding"
    with pytest.raises(ShapeError, match=re.escape(text)):
        serial(avg_pool(3)).init(jax.random.key(0), (2, 5, 1))


@pytest.mark.parametrize("case", ["halving", "clipped", "uneven", "gaps"])
def test_a_gpu_gives_the_gradient_to_the_first_maximum_too(case, monkeypatch):
    size, stride, padding, pads = CASES[case]
    layer, x = max_pool(size, stride, padding=padding), with_ties()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    y, back = jax.vjp(lambda x: layer.apply((), (), x)[0], jnp.float32(x))
    dy = np.random.default_rng(1).standard_normal(y.shape)
    want = reference.max_pool_gradient(x, dy, size, stride, pads)
    np.testing.assert_allclose(back(jnp.float32(dy))[0], want, atol=1e-5)


def rectified_shapes(function, *args):
    """Shapes of what is compared with 0 to be rectified, wherever in the function."""
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "max" and eqn.invars[1].aval.shape == ():
                found.append(eqn.outvars[0].aval.shape)
            for value in eqn.params.values():
                for inner in value if isinstance(value, tuple | list) else [value]:
                    walk(inner.jaxpr) if hasattr(inner, "jaxpr") else None

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return set(found)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("act", [relu(), leaky_relu(0.1)], ids=["relu", "leaky"])
def test_rectifying_what_was_pooled_is_pooling_what_was_rectified(act, backend, monkeypatch):
    net = serial(
        conv(4, 3, padding=1), act, max_pool(3, 2, padding="clip"),
        conv(3, 3, bias=False), batch_norm(), act, max_pool(2),
        conv(2, 1), max_pool(2), act, dense(5),
    )  # fmt: skip
    params, state, _ = net.init(jax.random.key(0), (14, 14, 3))
    params = jax.tree.map(lambda w: w + 0.1 if w.ndim == 1 else w, params)
    x = jnp.round(4 * jax.random.normal(jax.random.key(1), (3, 14, 14, 3))) / 4
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def one_by_one(params, x):
        for part, p, s in zip(net.parts, params, state, strict=True):
            x, _ = part.apply(p, s, x, train=True)
        return (x**2).sum()

    together = lambda params, x: (net.apply(params, state, x, train=True)[0] ** 2).sum()
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-4)
    both = [jax.value_and_grad(function, (0, 1))(params, x) for function in (together, one_by_one)]
    jax.tree.map(close, *both)
    if act.kind == "relu":
        assert rectified_shapes(together, params, x) == {(3, 7, 7, 4), (3, 2, 2, 3), (3, 1, 1, 2)}
        assert rectified_shapes(one_by_one, params, x) == {(3, 14, 14, 4), (3, 5, 5, 3), (3, 1, 1, 2)}
