"""Dense layers, activations, dropout and norms against plain NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cnnkit.layers as layers
from tests import reference

KEY = jax.random.key(0)


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def forward(layer, x, params=(), state=(), **settings):
    return layer.apply(params, state, jnp.float32(x), **settings)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("name", reference.ACTIVATIONS)
def test_activations_are_their_formulas_and_so_are_their_gradients(name, backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    function, layer = reference.ACTIVATIONS[name], getattr(layers, name)()
    x, dy = drawn(3, 5), drawn(3, 5, seed=1)
    assert layer.init(None, (5,))[2] == (5,)
    y, back = jax.vjp(lambda x: forward(layer, x)[0], jnp.float32(x))
    np.testing.assert_allclose(y, function(x), atol=1e-6)
    np.testing.assert_allclose(back(jnp.float32(dy))[0], reference.gradient(function, x, dy), atol=1e-5)
    assert layer.apply((), (), jnp.asarray(x, jnp.bfloat16))[0].dtype == jnp.bfloat16


def test_rectifiers_have_the_slope_of_the_left_side_at_zero():
    slope = jax.grad(lambda x: layers.leaky_relu(0.2).apply((), (), x)[0])
    assert slope(0.0) == np.float32(0.2)
    assert jax.grad(lambda x: layers.relu().apply((), (), x)[0])(0.0) == 0


def test_dense_flattens_and_multiplies():
    layer = layers.dense(4)
    params, _, shape = layer.init(KEY, (2, 3, 2))
    params["b"] = jnp.arange(4.0)
    x = drawn(5, 2, 3, 2)
    y, _ = forward(layer, x, params)
    assert y.shape == (5, *shape)
    np.testing.assert_allclose(y, x.reshape(5, 12) @ np.float64(params["w"]) + np.arange(4), atol=1e-5)
    assert set(layers.dense(4, bias=False).init(KEY, (3,))[0]) == {"w"}
    assert layer.apply(params, (), jnp.asarray(x, jnp.bfloat16))[0].dtype == jnp.bfloat16
    assert {p.dtype.name for p in params.values()} == {"float32"}


def test_flatten_and_identity_only_move():
    x = drawn(2, 3, 4, 5)
    assert layers.flatten().init(None, (3, 4, 5))[2] == (60,)
    np.testing.assert_array_equal(forward(layers.flatten(), x)[0], np.float32(x).reshape(2, 60))
    np.testing.assert_array_equal(forward(layers.identity(), x)[0], np.float32(x))


def test_affine_scales_and_shifts_every_element():
    layer = layers.affine(decay=0.5)
    params, _, shape = layer.init(None, (3, 2))
    assert shape == (3, 2)
    np.testing.assert_array_equal(forward(layer, np.ones((1, 3, 2)), params)[0], np.ones((1, 3, 2)))
    params = {"w": jnp.float32(drawn(3, 2)), "b": jnp.float32(drawn(3, 2, seed=1))}
    x = drawn(4, 3, 2)
    y, _ = forward(layer, x, params)
    np.testing.assert_allclose(y, x * drawn(3, 2) + drawn(3, 2, seed=1), atol=1e-6)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_the_rate_and_keeps_the_mean(rate):
    x = np.ones((50, 20, 20, 3))
    y, _ = forward(layers.dropout(rate), x, key=KEY, train=True)
    values, counts = np.unique(y, return_counts=True)
    np.testing.assert_allclose(values, [0, 1 / (1 - rate)], rtol=1e-4)
    # Five standard deviations of 60,000 draws.
    np.testing.assert_allclose(counts[0] / y.size, rate, atol=5 * (rate * (1 - rate) / y.size) ** 0.5)
    other, _ = forward(layers.dropout(rate), x, key=jax.random.key(1), train=True)
    agree = float((other == y).mean())
    np.testing.assert_allclose(agree, rate**2 + (1 - rate) ** 2, atol=0.01)


def test_dropout_of_neighbours_is_independent():
    # A bit generator cut into halves must not make pairs of elements fall together.
    dropped = np.asarray(forward(layers.dropout(0.5), np.ones((1, 40_000)), key=KEY, train=True)[0] == 0)[0]
    for lag in (1, 2, 3, 4, 20_000):
        both = (dropped[lag:] & dropped[:-lag]).mean()
        np.testing.assert_allclose(both, 0.25, atol=5 * (0.25 * 0.75 / (40_000 - lag)) ** 0.5)


def test_dropout_of_channels_takes_them_whole():
    y, _ = forward(layers.dropout(0.3, channels=True), np.ones((40, 3, 4, 50)), key=KEY, train=True)
    whole = np.asarray(y).reshape(40, 12, 50)
    assert (whole == whole[:, :1]).all()
    np.testing.assert_allclose((whole[:, 0] == 0).mean(), 0.3, atol=0.05)


def test_dropout_does_nothing_outside_of_training_and_says_when_a_key_is_missing():
    x = drawn(2, 3)
    np.testing.assert_array_equal(forward(layers.dropout(0.5), x)[0], np.float32(x))
    np.testing.assert_array_equal(forward(layers.dropout(0), x, train=True)[0], np.float32(x))
    with pytest.raises(ValueError, match=re.escape("dropout needs a key when train=True")):
        forward(layers.dropout(0.5), x, train=True)


def test_batch_norm_normalizes_by_the_batch_and_remembers():
    layer = layers.batch_norm(momentum=0.8, eps=1e-3)
    params, state, shape = layer.init(KEY, (3, 4, 2))
    assert shape == (3, 4, 2)
    x = 100 + 3 * drawn(5, 3, 4, 2)
    params = {"scale": jnp.float32(drawn(2)), "shift": jnp.float32(drawn(2, seed=1))}
    want, mean, var = reference.batch_norm(x, drawn(2), drawn(2, seed=1), 1e-3)
    y, after = forward(layer, x, params, state, train=True)
    np.testing.assert_allclose(y, want, atol=1e-4)
    np.testing.assert_allclose(after["mean"], 0.2 * mean, rtol=1e-5)
    np.testing.assert_allclose(after["var"], 0.8 + 0.2 * var, rtol=1e-5)
    told = {"mean": jnp.float32(mean), "var": jnp.float32(x.reshape(-1, 2).var(0))}
    still, kept = forward(layer, x, params, told)
    np.testing.assert_allclose(still, want, atol=1e-4)
    assert kept is told


def test_batch_norms_gradient_is_the_definitions():
    layer = layers.batch_norm()
    params, state, _ = layer.init(KEY, (2,))
    x, dy = drawn(4, 2), drawn(4, 2, seed=1)
    _, back = jax.vjp(lambda x: layer.apply(params, state, x, train=True)[0], jnp.float32(x))
    want = reference.gradient(lambda x: reference.batch_norm(x, 1, 0, 1e-5)[0], x, dy)
    np.testing.assert_allclose(back(jnp.float32(dy))[0], want, atol=1e-4)


def test_batch_norm_can_do_without_scale_and_shift_and_keeps_float32_statistics():
    layer = layers.batch_norm(scale=False, center=False)
    params, state, _ = layer.init(KEY, (2,))
    assert params == {}
    x = jnp.asarray(drawn(64, 2), jnp.bfloat16)
    y, after = layer.apply(params, state, x, train=True)
    assert (y.dtype, after["mean"].dtype, after["var"].dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    np.testing.assert_allclose(np.float32(y).std(0), 1, atol=0.02)


def test_half_precision_statistics_of_one_pass_keep_their_digits_about_the_running_mean():
    layer = layers.batch_norm(momentum=0.0, scale=False, center=False)
    params, state, _ = layer.init(KEY, (2,))
    x = jnp.asarray(30 + drawn(500, 2), jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    for _ in range(2):  # about 0, then about the mean
        _, state = layer.apply(params, state, x, train=True)
        np.testing.assert_allclose(state["mean"], exact.mean(0), rtol=1e-5)
        np.testing.assert_allclose(state["var"], exact.var(0, ddof=1), rtol=2e-3)
    np.testing.assert_allclose(state["var"], exact.var(0, ddof=1), rtol=1e-5)
    dy = jnp.asarray(drawn(500, 2, seed=1), jnp.bfloat16)
    grad = jax.vjp(lambda x: layer.apply(params, state, x, train=True)[0], x)[1](dy)[0]
    wide = jnp.asarray(x, jnp.float32)
    want = jax.vjp(lambda x: layer.apply(params, state, x, train=True)[0], wide)[1](jnp.float32(dy))[0]
    np.testing.assert_allclose(np.float32(grad), want, atol=0.02)


GATED = {
    "gelu": lambda: layers.serial(layers.batch_norm(momentum=0.6, scale=False), layers.gelu()),
    "silu": lambda: layers.serial(layers.batch_norm(center=False), layers.silu()),
    "amid": lambda: layers.serial(layers.affine(), layers.batch_norm(), layers.gelu(), layers.dense(3)),
}


def gated_case(name):
    """A network, its weights off their first values, inputs, and what its outputs and statistics lead to."""
    net = GATED[name]()
    params, state, _ = net.init(KEY, (4, 5))
    params = jax.tree.map(lambda w: w + 0.3 * jnp.float32(drawn(*w.shape, seed=2)), params)
    x = jnp.float32(2 + 3 * drawn(6, 4, 5))

    def outcome(params, x):
        y, after = net.apply(params, state, x, train=True)
        far = [jnp.float32(drawn(*leaf.shape, seed=3)) for leaf in jax.tree.leaves((y, after))]
        return sum((a * b).sum() for a, b in zip(jax.tree.leaves((y, after)), far)), (y, after)

    return outcome, params, x


@pytest.mark.parametrize("name", GATED)
def test_a_norm_and_its_activation_together_are_what_they_are_one_by_one(name, monkeypatch):
    outcome, params, x = gated_case(name)
    both = lambda: jax.value_and_grad(outcome, (0, 1), has_aux=True)(params, x)
    apart = both()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "custom_vjp" in str(jax.make_jaxpr(outcome)(params, x))  # or nothing is compared here
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=2e-5), both(), apart)


def test_a_norm_and_its_activation_together_keep_to_their_workers(monkeypatch):
    from jax.sharding import Mesh, PartitionSpec

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    outcome, params, x = gated_case("amid")
    rows, same = PartitionSpec("w"), PartitionSpec()
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("w",))
    body = lambda params, x: jax.grad(lambda *a: outcome(*a)[0], (0, 1))(params, x[0])
    over = jax.shard_map(body, mesh=mesh, in_specs=(same, rows), out_specs=(same, rows))
    total, mine = jax.jit(over)(params, jnp.stack([x, x[::-1] + 1]))
    one, other = (jax.grad(lambda *a: outcome(*a)[0], (0, 1))(params, x) for x in (x, x[::-1] + 1))
    both = jax.tree.map(jnp.add, one[0], other[0])  # weights that all share get the sum of their gradients
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), total, both)
    np.testing.assert_allclose(mine, np.concatenate([one[1], other[1]]), atol=2e-5)


def test_identity_filters_hand_channels_on():
    layer = layers.conv(5, 3, padding="same", bias=False, init="identity")
    params, _, _ = layer.init(KEY, (6, 6, 3))
    x = drawn(2, 6, 6, 3)
    y, _ = forward(layer, x, params)
    np.testing.assert_allclose(y[..., :3], x, atol=1e-6)
    rest = np.asarray(params["w"])[..., 3:]
    assert 0.9 / 27**0.5 < np.abs(rest).max() <= 1 / 27**0.5
    with pytest.raises(ValueError, match=re.escape("init='identity' is for the filters of a conv, not for")):
        layers.dense(3, init="identity").init(KEY, (4,))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_lrn_divides_by_neighbouring_channels(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    x = 3 * drawn(2, 3, 7)
    y, _ = forward(layers.lrn(3, k=1.0, alpha=0.1, beta=0.5), x)
    np.testing.assert_allclose(y, reference.lrn(x, 3, 1.0, 0.1, 0.5), atol=1e-5)
    dy = drawn(*x.shape, seed=1)
    _, back = jax.vjp(lambda x: forward(layers.lrn(3, k=1.0, alpha=0.1, beta=0.5), x)[0], jnp.float32(x))
    grad = back(jnp.float32(dy))[0]
    want = reference.gradient(lambda x: reference.lrn(x, 3, 1.0, 0.1, 0.5), x, dy)
    np.testing.assert_allclose(grad, want, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: layers.dropout(1.0), "rate=1.0: the fraction dropped, from 0 to below 1, is needed"),
        (lambda: layers.dropout(-0.1), "rate=-0.1: the fraction dropped"),
        (lambda: layers.leaky_relu(1), "slope=1: a number from 0 to below 1 is needed"),
        (lambda: layers.dense(2.5), "features=2.5: a whole number from 1 on is needed"),
        (lambda: layers.dense(2, lr=-1), "lr=-1: a number from 0 on is needed"),
        (lambda: layers.affine(decay=-1), "decay=-1: a number from 0 on is needed"),
        (lambda: layers.batch_norm(momentum=1), "momentum=1: the part kept, from 0 to below 1, is needed"),
        (lambda: layers.batch_norm(eps=0), "eps=0: a number above 0 is needed"),
        (lambda: layers.lrn(4), "size=4: an odd number of channels is needed"),
        (lambda: layers.lrn(k=0), "k=0: a number above 0 is needed"),
    ],
)
def test_wrong_settings_are_told(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


def test_initial_weights_are_drawn_afresh_for_every_key_and_every_chunk():
    # More numbers than one chunk holds: no stretch of them may come twice.
    first = np.asarray(layers.dense(300).init(KEY, (200,))[0]["w"]).ravel()
    other = np.asarray(layers.dense(300).init(jax.random.key(1), (200,))[0]["w"]).ravel()
    assert len(np.unique(first)) > 0.99 * first.size
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.02
    np.testing.assert_array_equal(first, np.asarray(layers.dense(300).init(KEY, (200,))[0]["w"]).ravel())


def test_gelu_bends_at_nought_as_it_should():
    """Φ is made of two halves that meet there; the second derivative is 2φ(0)."""
    bend = jax.vmap(jax.grad(jax.grad(lambda x: layers.gelu().apply((), (), x)[0])))(
        jnp.array([0.0, -0.0, 1e-6, 1.0])
    )
    at = lambda x: (2 - x * x) * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(bend, [at(0), at(0), at(1e-6), at(1.0)], rtol=1e-5)
