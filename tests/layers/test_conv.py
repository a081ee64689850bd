"""Convolutions by three algorithms against plain NumPy, forward and backward."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import ShapeError, conv, identity, local, nin, relu, serial
from cnnkit.layers.convolve import ALGORITHMS, Window
from tests import reference

# stride, padding, dilation, groups, kernel, channels, features: each is a case that broke something once,
# or may: padding beyond the kernel, rows that no window reaches, kernels of one row, negative padding in the
# gradient (a kernel smaller than the padding), depth-wise groups.
CASES = {
    "plain": ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, (3, 3), 4, 6),
    "same": ((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (3, 3), 4, 6),
    "strided": ((2, 2), ((1, 1), (1, 1)), (1, 1), 1, (3, 3), 4, 6),
    "rows left over": ((3, 2), ((0, 0), (0, 0)), (1, 1), 1, (2, 3), 4, 6),
    "dilated": ((1, 1), ((2, 2), (2, 2)), (2, 2), 1, (3, 3), 4, 6),
    "all at once": ((2, 1), ((1, 2), (2, 0)), (1, 2), 2, (3, 2), 4, 6),
    "pads beyond the kernel": ((1, 1), ((1, 2), (2, 0)), (1, 1), 1, (1, 2), 4, 6),
    "one by one": ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, (1, 1), 4, 6),
    "one by one strided": ((2, 2), ((0, 0), (0, 0)), (1, 1), 1, (1, 1), 4, 6),
    "grouped": ((1, 1), ((1, 1), (1, 1)), (1, 1), 2, (3, 3), 4, 6),
    "depth-wise": ((2, 2), ((1, 1), (1, 1)), (1, 1), 4, (3, 3), 4, 4),
}


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def as_jax(x, dtype=jnp.float32):
    return jnp.asarray(x, dtype)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_agrees_with_the_definition_and_so_do_its_gradients(name, case):
    stride, pads, dilation, groups, size, channels, features = CASES[case]
    x, w = drawn(2, 7, 6, channels), drawn(*size, channels // groups, features)
    y = reference.conv(x, w, stride, pads, dilation, groups)
    dy = drawn(*y.shape, seed=1)
    # The convolution is linear in the image and in the kernel: ⟨dy, conv(x + d, w)⟩ has an exact difference.
    far_x, far_w = drawn(*x.shape, seed=2), drawn(*w.shape, seed=3)
    along_x = (dy * reference.conv(far_x, w, stride, pads, dilation, groups)).sum()
    along_w = (dy * reference.conv(x, far_w, stride, pads, dilation, groups)).sum()

    @jax.jit
    def both(x, w, dy):
        z, back = jax.vjp(lambda x, w: ALGORITHMS[name](x, w, Window(stride, pads, dilation, groups)), x, w)
        return z, back(dy)

    z, (dx, dw) = both(as_jax(x), as_jax(w), as_jax(dy))
    np.testing.assert_allclose(z, y, atol=2e-5)
    np.testing.assert_allclose((np.float64(dx) * far_x).sum(), along_x, atol=5e-4)
    np.testing.assert_allclose((np.float64(dw) * far_w).sum(), along_w, atol=5e-4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bfloat16_stays_bfloat16_and_close(name):
    x, w = drawn(2, 6, 6, 4), drawn(3, 3, 4, 8)
    window = Window((1, 1), ((1, 1), (1, 1)))
    x16, w16 = as_jax(x, jnp.bfloat16), as_jax(w, jnp.bfloat16)
    y = reference.conv(np.float64(x16), np.float64(w16), pads=window.pads)

    @jax.jit
    def both(x, w):
        z, back = jax.vjp(lambda x, w: ALGORITHMS[name](x, w, window), x, w)
        return z, *back(jnp.ones_like(z))

    made = both(x16, w16)
    assert [m.dtype for m in made] == [jnp.bfloat16] * 3
    np.testing.assert_allclose(np.float64(made[0]), y, atol=0.1)
    wanted = both(as_jax(x), as_jax(w))
    for got, want in zip(made[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(np.float32(got), want, atol=0.02 * np.abs(want).max())


def test_a_layer_computes_the_convolution_and_adds_its_bias():
    layer = conv(6, (3, 2), stride=2, padding=((1, 0), (0, 1)), dilation=(1, 2), groups=2)
    params, state, shape = layer.init(jax.random.key(0), (7, 6, 4))
    params["b"] = jnp.arange(6.0)
    x = drawn(2, 7, 6, 4)
    y, _ = layer.apply(params, state, as_jax(x))
    want = reference.conv(x, np.float64(params["w"]), (2, 2), ((1, 0), (0, 1)), (1, 2), 2) + np.arange(6)
    assert y.shape == (2, *shape) == want.shape
    np.testing.assert_allclose(y, want, atol=1e-5)


@pytest.mark.parametrize(
    ("padding", "stride", "shape"),
    [("same", 1, (7, 6)), ("same", 2, (4, 3)), ("same", 3, (3, 2)), ("valid", 2, (3, 2)), (2, 1, (9, 8))],
)
def test_named_paddings_give_the_shapes_they_are_known_for(padding, stride, shape):
    layer = conv(2, 3, stride=stride, padding=padding)
    params, _, out = layer.init(jax.random.key(0), (7, 6, 1))
    y, _ = layer.apply(params, (), jnp.ones((1, 7, 6, 1)))
    assert out == y.shape[1:] == (*shape, 2)


def test_a_local_layer_has_a_kernel_of_its_own_at_every_place():
    layer = local(3, (2, 3), stride=(2, 1), padding=((0, 1), (1, 1)))
    params, _, shape = layer.init(jax.random.key(0), (5, 4, 2))
    assert params["w"].shape == (3, 4, 12, 3)
    params["b"] = as_jax(drawn(3, 4, 3))
    x = drawn(2, 5, 4, 2)
    y, _ = layer.apply(params, (), as_jax(x))
    want = reference.local(x, np.float64(params["w"]), (2, 3), (2, 1), ((0, 1), (1, 1)))
    assert y.shape == (2, *shape)
    np.testing.assert_allclose(y, want + np.float64(params["b"]), atol=1e-5)


def test_nin_is_a_convolution_and_one_by_ones_each_with_its_activation():
    net = nin(8, 3, 5, 4, padding=1, decay=1e-3)
    assert [part.name for part in net.parts] == [
        "conv 8 3×3 padding=1",
        "relu",
        "conv 5 1×1",
        "relu",
        "conv 4 1×1",
        "relu",
    ]
    assert [part.decay for part in net.parts] == [1e-3, 0, 1e-3, 0, 1e-3, 0]


def test_initial_weights_have_the_spread_of_their_name():
    def spread(init):
        weights = conv(64, 3, init=init).init(jax.random.key(0), (8, 8, 32))[0]["w"]
        assert weights.dtype == jnp.float32
        return float(weights.std())

    fan_in, fan_out = 9 * 32, 9 * 64
    np.testing.assert_allclose(spread("he"), (2 / fan_in) ** 0.5, rtol=0.02)
    np.testing.assert_allclose(spread("lecun"), (1 / fan_in) ** 0.5, rtol=0.02)
    np.testing.assert_allclose(spread("glorot"), (2 / (fan_in + fan_out)) ** 0.5, rtol=0.02)
    np.testing.assert_allclose(spread(("normal", 0.05)), 0.05, rtol=0.02)
    np.testing.assert_allclose(spread(("uniform", 0.3)), 0.3 / 3**0.5, rtol=0.02)


def lowered(function, *args):
    return jax.jit(function).lower(*args).as_text()


def test_in_a_loop_the_gradients_are_plain_convolutions():
    # Only that form is fast there: batch first, channels last, kernel [h, w, in, out], nothing reversed.
    x, w = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 8))
    window = Window((1, 1), ((1, 1), (1, 1)))

    def step(i, w):
        return w - jax.grad(lambda w: ALGORITHMS["direct"](x, w, window).sum())(w)

    text = lowered(lambda w, n: jax.lax.fori_loop(0, n, step, w), w, 3)
    layouts = re.findall(r"dim_numbers = (\[.*?\]x\[.*?\]->\[.*?\])", text)
    assert layouts
    assert set(layouts) == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"}
    assert "reverse = [true" not in text


def test_the_gradient_goes_through_shard_map():
    # Kernels that every worker shares beside images of its own: the kernels' gradients are summed.
    mesh = jax.make_mesh((2,), ("worker",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    window = Window((1, 1), ((0, 0), (0, 0)))
    x, w = as_jax(drawn(4, 5, 5, 2)), as_jax(drawn(3, 3, 2, 3))

    def gradient(x, w):
        return jax.grad(lambda w: ALGORITHMS["direct"](x, w, window).sum())(w)

    spread = jax.shard_map(gradient, mesh=mesh, in_specs=(spec("worker"), spec()), out_specs=spec())
    np.testing.assert_allclose(jax.jit(spread)(x, w), gradient(x, w), atol=1e-4)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: conv(0, 3), "features=0: a whole number from 1 on is needed"),
        (lambda: conv(8, 0), "size=0: a whole number from 1 on is needed, or a pair (height, width) of them"),
        (lambda: conv(8, (3, 3, 3)), "size=(3, 3, 3): a whole number from 1 on is needed, or a pair"),
        (lambda: conv(8, 3, stride=0), "stride=0: a whole number from 1 on is needed"),
        (lambda: conv(8, 3, padding="full"), "padding='full': give 'valid', 'same', a number of pixels"),
        (lambda: conv(8, 3, padding=-1), "padding=-1: give 'valid', 'same', a number of pixels from 0 on"),
        (lambda: conv(8, 3, groups=3), "features=8 cannot be split into groups=3; use a multiple of it"),
        (lambda: conv(8, 3, decay=-1), "decay=-1: a number from 0 on is needed"),
        (lambda: conv(8, 3, algorithm="ftf"), "unknown algorithm of convolution 'ftf': did you mean 'fft'?"),
        (lambda: conv(8, 3, init="hee"), "did you mean 'he'?"),
        (lambda: conv(8, 3, init=("normal", 0)), "init=('normal', 0): the second number is a width"),
        (lambda: conv(8, 3, init=("norml", 1)), "unknown distribution of initial weights 'norml'"),
        (lambda: local(8, 3, padding="clip"), "padding='clip': give 'valid', 'same'"),
    ],
)
def test_wrong_settings_are_told(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


@pytest.mark.parametrize(
    ("layer", "shape", "text"),
    [
        (conv(8, 3), (10,), "got 10, but conv needs an image (height, width, channels)"),
        (conv(8, 5), (4, 9, 1), "got 4×9×1: a window of 5 does not fit into 4 + 0 pixels of padding"),
        (conv(8, 3, groups=2), (9, 9, 3), "got 9×9×3: 3 channels cannot be split into groups=2"),
        (local(8, 3), (10,), "got 10, but local needs an image"),
    ],
)
def test_shapes_that_do_not_fit_are_errors_at_init(layer, shape, text):
    with pytest.raises(ShapeError, match=re.escape(text)):
        layer.init(jax.random.key(0), shape)
    with pytest.raises(ShapeError, match=re.escape(f"layer 1 ({layer.name}) {text}")):
        serial(identity(), layer).init(jax.random.key(0), shape)


def test_a_convolution_and_its_rectifier_together_are_what_they_are_one_by_one(monkeypatch):
    net = serial(conv(4, 3, padding=1), relu(), conv(2, 1), relu())
    params, state, _ = net.init(jax.random.key(0), (5, 5, 3))
    x = jax.random.normal(jax.random.key(1), (2, 5, 5, 3))
    loss = lambda params, x: (net.apply(params, state, x, train=True)[0] ** 2).sum()
    barriers = lambda: str(jax.make_jaxpr(jax.grad(loss))(params, x)).count("optimization_barrier")
    apart = jax.value_and_grad(loss, (0, 1))(params, x)
    assert barriers() == 0
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    together = jax.value_and_grad(loss, (0, 1))(params, x)
    assert barriers() == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), together, apart)
