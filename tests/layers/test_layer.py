"""The protocol and its combinators: order, keys, shapes, errors with a place in them, descriptions."""

import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cnnkit.layers as layers
from cnnkit.layers import (
    Layer,
    ShapeError,
    batch_norm,
    branch,
    conv,
    dense,
    dropout,
    max_pool,
    relu,
    residual,
    serial,
)
from cnnkit.layers.layer import stateless

KEY = jax.random.key(0)


def times(factor):
    return stateless("times", lambda x: factor * x, factor=factor)


def plus(term):
    return stateless("plus", lambda x: x + term, term=term)


def noise():
    return Layer(
        lambda key, shape: ((), (), shape),
        lambda params, state, x, *, key=None, train=False: (x + jax.random.normal(key, x.shape), state),
        "noise",
    )


def counter():
    """A layer whose state counts its calls."""
    return Layer(
        lambda key, shape: ((), {"calls": jnp.zeros(())}, shape),
        lambda params, state, x, *, key=None, train=False: (x, {"calls": state["calls"] + 1}),
        "counter",
    )


def run(net, x, shape=None, **settings):
    params, state, out = net.init(KEY, shape or x.shape[1:])
    y, after = net.apply(params, state, x, **settings)
    assert y.shape[1:] == out
    return y, after


def test_serial_applies_in_order_and_threads_state():
    y, state = run(serial(plus(1), counter(), times(3)), jnp.ones((2, 2)))
    np.testing.assert_array_equal(y, jnp.full((2, 2), 6.0))
    assert state == ((), {"calls": 1}, ())


def test_every_layer_gets_a_key_of_its_own():
    x = jnp.zeros((1, 100))
    two, _ = run(branch(noise(), noise()), x, key=KEY)
    assert not np.allclose(two[:, :100], two[:, 100:])
    params = serial(dense(5), dense(5)).init(KEY, (5,))[0]
    assert not np.allclose(params[0]["w"], params[1]["w"])


def test_branches_concatenate_channels_where_the_images_agree():
    x = jnp.arange(12.0).reshape(1, 2, 3, 2)
    y, _ = run(branch(times(1), times(-1)), x)
    np.testing.assert_array_equal(y, jnp.concatenate([x, -x], -1))


def test_branches_flatten_where_they_do_not():
    x = jnp.arange(12.0).reshape(1, 2, 3, 2)
    y, _ = run(branch(layers.flatten(), times(-1)), x)
    np.testing.assert_array_equal(y, jnp.concatenate([x.ravel(), -x.ravel()])[None])


def test_convolutions_of_one_input_are_one_where_that_is_faster(monkeypatch):
    net = serial(
        branch(
            serial(conv(3, 1), relu(), dropout(0.5)),
            serial(serial(conv(2, 1), relu()), conv(3, 3, padding=1)),
            conv(4, 1, bias=False),  # of another kind, and alone
            conv(2, 1),
            relu(),
        ),
        layers.inception(4, (3, 4), (2, 3), 2),
        dense(3),
    )
    params, state, _ = net.init(KEY, (5, 5, 3))
    x = jax.random.normal(jax.random.key(1), (2, 5, 5, 3))
    widths = []
    convolve = layers.conv.__globals__["convolve"]

    def counted(x, w, *rest):
        widths.append(w.shape[-1])
        return convolve(x, w, *rest)

    monkeypatch.setitem(layers.conv.__globals__, "convolve", counted)
    loss = lambda params, x: (net.apply(params, state, x, key=KEY, train=True)[0] ** 2).sum()
    apart = jax.value_and_grad(loss, (0, 1))(params, x)
    assert widths == [3, 2, 3, 4, 2, 4, 3, 4, 2, 3, 2]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    widths.clear()
    together = jax.value_and_grad(loss, (0, 1))(params, x)
    assert widths == [3 + 2 + 2, 3, 4, 4 + 3 + 2, 4, 3, 2]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), together, apart)


def test_branches_sum_and_residual_adds_what_comes_in():
    x = jnp.arange(3.0)[None]
    np.testing.assert_array_equal(run(branch(times(2), times(3), merge="sum"), x)[0], 5 * x)
    np.testing.assert_array_equal(run(residual(times(2)), x)[0], 3 * x)
    np.testing.assert_array_equal(run(residual(times(2), times(-2)), x)[0], 0 * x)


def test_whatever_follows_sees_train_and_key():
    net = serial(branch(serial(dropout(0.5)), times(1)))
    y, _ = run(net, jnp.ones((1, 1000)), key=KEY, train=True)
    assert set(np.unique(y[:, :1000])) == {0, 2}
    np.testing.assert_array_equal(run(net, jnp.ones((1, 10)))[0], jnp.ones((1, 20)))


def test_a_shape_error_tells_the_whole_way_to_the_layer():
    net = serial(relu(), branch(relu(), serial(layers.flatten(), conv(4, 3))))
    text = "layer 1, path 1, layer 1 (conv 4 3×3) got 64, but conv needs an image"
    with pytest.raises(ShapeError, match=re.escape(text)):
        net.init(KEY, (8, 8, 1))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: serial(), ValueError, "serial needs at least one layer"),
        (
            lambda: serial(relu),
            TypeError,
            "serial: part 0 is the function relu, not a Layer; call it, e.g. relu(…)",
        ),
        (
            lambda: serial([relu(), relu()]),
            TypeError,
            "serial: part 0 is a list, not a Layer; give layers one by one, or serial(*layers) for a list of them",
        ),
        (lambda: branch(relu(), 3), TypeError, "branch: part 1 is 3, not a Layer"),
        (lambda: branch(relu(), merge="summ"), ValueError, "unknown merge 'summ': did you mean 'sum'?"),
    ],
)
def test_wrong_parts_are_told(make, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make()


def test_a_sum_of_unequal_shapes_is_told():
    net = serial(residual(conv(4, 3)))
    text = "layer 0, merge='sum' needs paths of one shape, these give 6×6×4 and 8×8×1; set strides, padding"
    with pytest.raises(ShapeError, match=re.escape(text)):
        net.init(KEY, (8, 8, 1))


ALL = [
    layers.conv(8, (3, 2), stride=2, padding=((1, 0), (0, 1)), dilation=(1, 2), groups=2, decay=1e-4, lr=2),
    layers.conv(8, 3, algorithm="fft", bias=False, init=("normal", 0.05)),
    layers.local(2, 3, padding="same", init=("uniform", 0.1)),
    layers.dense(3, bias=False, decay=0.1, init="glorot"),
    layers.affine(decay=0.5, lr=0.1),
    layers.flatten(),
    layers.max_pool(3, 2, padding="clip"),
    layers.avg_pool((2, 3)),
    layers.global_pool(),
    layers.batch_norm(momentum=0.8, eps=1e-3, scale=False, lr=0.5),
    layers.lrn(3, k=1, alpha=0.1, beta=0.5),
    layers.dropout(0.3, channels=True),
    layers.whiten(2, eps=0.1, lr=0.5),
    *(layers.relu(), layers.gelu(), layers.silu(), layers.sigmoid(), layers.tanh(), layers.scaled_tanh()),
    *(layers.softmax(), layers.identity()),
    layers.leaky_relu(0.3),
    layers.nin(4, 3, 5, padding=1),
    layers.inception(4, (3, 4), (0, 2), 2, keep=True, decay=1e-3),
    branch(relu(), serial(dense(2)), merge="concatenate"),
    residual(dense(3)),
    dense(3).named("the last"),
]


@pytest.mark.parametrize("layer", ALL, ids=lambda layer: layer.name)
def test_a_description_survives_json_and_builds_the_layer_again(layer):
    described = json.loads(json.dumps(layer.describe()))
    again = layers.rebuild(described)
    assert again.describe() == layer.describe()
    assert (again.name, again.decay, again.lr) == (layer.name, layer.decay, layer.lr)


def test_every_kind_of_layer_can_be_built_again():
    from cnnkit.layers.rebuild import _COMBINATORS, _MAKERS

    def kinds(layer):
        return {layer.kind}.union(*map(kinds, layer.parts))

    assert set().union(*map(kinds, ALL)) == {*_MAKERS, *_COMBINATORS}


def test_a_layer_of_your_own_cannot_be_built_again_and_says_so():
    with pytest.raises(ValueError, match=re.escape("a layer of kind 'times' is none of cnnkit's")):
        layers.rebuild(serial(times(2)).describe())


def test_equal_settings_are_told_apart_from_others():
    assert conv(8, 3).describe() == conv(8, (3, 3)).describe()
    for other in (conv(8, 3, stride=2), conv(8, 3, lr=2), conv(8, 3, decay=1), conv(8, 3, init="lecun")):
        assert conv(8, 3).describe() != other.describe()


def test_names_show_what_is_not_usual():
    names = [layer.name for layer in ALL[:3]]
    assert names == [
        "conv 8 3×2 stride=2 padding=((1,0),(0,1)) dilation=(1,2) groups=2",
        "conv 8 3×3 bias=False algorithm=fft",
        "local 2 3×3 padding=same",
    ]
    assert layers.max_pool(3, 2, padding="clip").name == "max_pool 3×3 stride=2 padding=clip"
    assert dropout(0.3, channels=True).name == "dropout 0.3 channels"
    assert dropout(0.3).name == "dropout 0.3"


def test_a_layer_of_your_own_is_never_taken_for_one_of_that_name(monkeypatch):
    """Whether its function was replaced or it bears a known name: together is what layers are one by one."""

    def changed(layer, function):
        return replace(
            layer, apply=lambda p, s, x, *, key=None, train=False: (function(x), s), fused=None, beside=None
        )

    squares = changed(max_pool(2), lambda x: max_pool(2).apply((), (), x**2)[0])
    bent = Layer(
        lambda key, shape: ({"a": jnp.float32(0.25)}, (), shape),
        lambda p, s, x, *, key=None, train=False: (jnp.where(x > 0, x, p["a"] * x), s),
        "leaky_relu",
    )
    tenfold = serial(conv(4, 3, padding=1), relu())
    tenfold = changed(tenfold, lambda x: jnp.concatenate([x, x], -1) * 10)
    nets = [
        serial(conv(4, 3), relu(), squares),
        serial(conv(4, 3), squares),
        serial(conv(4, 3), bent, max_pool(2)),
        serial(conv(4, 3), changed(relu(), lambda x: x.clip(-1, 1))),
        serial(batch_norm(), stateless("gelu", lambda x: x * 3)),
        branch(tenfold, conv(4, 3, padding=1), merge="sum"),
    ]
    x = jax.random.normal(jax.random.key(1), (3, 8, 8, 2))
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        for net in nets:
            params, state, _ = net.init(KEY, (8, 8, 2))
            got, _ = net.apply(params, state, x, train=True)
            if net.join:
                want = sum(
                    part.apply(p, s, x, train=True)[0]
                    for part, p, s in zip(net.parts, params, state, strict=True)
                )
            else:
                want = x
                for part, p, s in zip(net.parts, params, state, strict=True):
                    want, _ = part.apply(p, s, want, train=True)
            np.testing.assert_allclose(got, want, atol=1e-4)
