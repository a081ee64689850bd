"""Convolutions on folded images against the same ones on images as they are."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import batch_norm, conv, gelu, leaky_relu, max_pool, relu, serial, whiten
from cnnkit.layers.convolve import direct
from cnnkit.layers.fold import folded, folds, neighbours
from cnnkit.layers.pool import largest
from cnnkit.layers.product import Window
from cnnkit.layers.whiten import measure
from tests import reference

NONE = ((0, 0), (0, 0))
# image, kernel, stride, pads, phases: pixels left over, sides cut off, windows that begin outside, one row alone.
CASES = {
    "a stem": ((11, 9), (7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1)),
    "wide strides": ((23, 23), (11, 11), (4, 4), NONE, (1, 1)),
    "patches": ((9, 8), (4, 4), (4, 4), NONE, (1, 1)),
    "a stride beyond the kernel": ((9, 10), (2, 1), (3, 2), ((1, 0), (0, 0)), (1, 1)),
    "unequal strides": ((8, 9), (3, 5), (1, 3), ((0, 2), (1, 0)), (1, 1)),
    "pooled": ((8, 8), (5, 5), (1, 1), NONE, (2, 2)),
    "pooled, one left over": ((7, 9), (3, 3), (1, 1), ((1, 1), (1, 1)), (2, 2)),
    "pooled, even kernel": ((8, 7), (4, 2), (1, 1), ((2, 0), (0, 1)), (2, 2)),
    "pooled under strides": ((12, 13), (3, 3), (2, 2), ((1, 1), (1, 1)), (2, 2)),
    "rows in threes": ((9, 5), (3, 1), (1, 1), ((1, 1), (0, 0)), (3, 1)),
}


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


@pytest.mark.parametrize(
    ("case", "backend"),
    [*((case, "gpu") for case in CASES), ("a stem", "cpu"), ("pooled, even kernel", "cpu")],
)
def test_a_folded_convolution_is_the_convolution(case, backend, monkeypatch):
    size, kernel, stride, pads, phases = CASES[case]
    x, w = drawn(2, *size, 3), drawn(*kernel, 3, 5)
    y = reference.conv(x, w, stride, pads, (1, 1), 1)
    rows, cols = (n // p for n, p in zip(y.shape[1:3], phases, strict=True))
    y = y[:, : rows * phases[0], : cols * phases[1]]
    side_by_side = y.reshape(2, rows, phases[0], cols, phases[1], 5).transpose(0, 1, 3, 2, 4, 5)
    side_by_side = side_by_side.reshape(2, rows, cols, -1, 5)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    channels = []

    def convolve(x, w, window):
        channels.append(x.shape[-1])
        return jax.lax.conv_general_dilated(
            x, w, window.stride, window.pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    @jax.jit
    def both(x, w, dy):
        z, back = jax.vjp(lambda x, w: folded(convolve, x, w, Window(stride, pads), phases), x, w)
        return z, *back(dy)

    dy = drawn(*side_by_side.shape, seed=1)
    z, dx, dw = both(jnp.float32(x), jnp.float32(w), jnp.float32(dy))
    np.testing.assert_allclose(z, side_by_side, atol=1e-4, rtol=1e-5)
    square = 3 * stride[0] * phases[0] * stride[1] * phases[1]
    assert channels == [square if backend == "cpu" else -(-square // 8) * 8]
    # The convolution is linear in the image and in the kernel: ⟨dy, conv(x + d, w)⟩ has an exact difference.
    far_x, far_w = drawn(*x.shape, seed=2), drawn(*w.shape, seed=3)
    unfolded = dy.reshape(2, rows, cols, *phases, 5).transpose(0, 1, 3, 2, 4, 5).reshape(y.shape)
    cut = lambda y: y[:, : rows * phases[0], : cols * phases[1]]
    along_x = (unfolded * cut(reference.conv(far_x, w, stride, pads, (1, 1), 1))).sum()
    along_w = (unfolded * cut(reference.conv(x, far_w, stride, pads, (1, 1), 1))).sum()
    np.testing.assert_allclose((np.float64(dx) * far_x).sum(), along_x, atol=5e-4)
    np.testing.assert_allclose((np.float64(dw) * far_w).sum(), along_w, atol=5e-4)


def test_the_largest_side_by_side_is_what_pooling_gives_and_the_first_has_its_gradient():
    x = jnp.asarray(np.random.default_rng(0).integers(-2, 2, (3, 6, 4, 5)), jnp.float32)  # many are equal
    x = x.at[0, 0, 0, 0].set(jnp.nan)
    pool = lambda x: max_pool(2).apply((), (), x)[0]

    def beside(x):
        y = x.reshape(3, 3, 2, 2, 2, 5).transpose(0, 1, 3, 2, 4, 5)
        return largest(y.reshape(3, 3, 2, 4, 5))

    dy = jnp.asarray(drawn(3, 3, 2, 5), jnp.float32)
    for function in (pool, beside):
        y, back = jax.vjp(function, x)
        if function is pool:
            known = y, back(dy)[0]
    np.testing.assert_array_equal(y, known[0])
    np.testing.assert_array_equal(back(dy)[0], known[1])


def kernels(function, *args):
    """[h, w, C, F] of the convolutions of the forward pass, in their order."""
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "conv_general_dilated":
                found.append(eqn.invars[1].aval.shape)
            for inner in jax.tree.leaves(list(eqn.params.values())):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return found


def started(net, side):
    """Parameters with biases that are not 0, and state."""
    params, state, _ = net.init(jax.random.key(0), side)
    return jax.tree.map(lambda w: w + 0.1 if w.ndim == 1 else w, params), state


def gradients(loss, params, x):
    """The loss and its gradients, traced anew: a backend may have been put in another's place."""
    return jax.jit(jax.value_and_grad(lambda *both: loss(*both), (0, 1)))(params, x)


def same(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), got, expected)


@pytest.mark.parametrize("act", [None, relu(), leaky_relu(0.1)], ids=["alone", "relu", "leaky"])
def test_a_gpu_folds_narrow_convolutions_whose_largest_alone_are_wanted(act, monkeypatch):
    between = [act] if act else []
    net = serial(
        conv(6, 5), *between, max_pool(2),
        conv(5, 3, padding=1, bias=False), *between, max_pool(2, padding="clip"),
        conv(4, 3, padding=1), *between, max_pool(2),
    )  # fmt: skip
    params, state, _ = net.init(jax.random.key(0), (22, 20, 3))  # 18 and 16; 9 and 8; 5 and 4
    params = jax.tree.map(lambda w: w + 0.1 if w.ndim == 1 else w, params)
    x = jax.random.normal(jax.random.key(1), (2, 22, 20, 3))
    loss = lambda params, x: (net.apply(params, state, x, train=True)[0] ** 2).sum()
    plain = gradients(loss, params, x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # The second pools a row that is not there: its windows are not all whole.
    assert kernels(loss, params, x) == [(3, 3, 16, 24), (3, 3, 6, 5), (2, 2, 24, 16)]
    same(gradients(loss, params, x), plain)


def test_who_names_an_algorithm_gets_it(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    net = serial(conv(6, 5, algorithm="direct"), max_pool(2))
    params, state, _ = net.init(jax.random.key(0), (8, 8, 1))
    apply = lambda x: net.apply(params, state, x, train=True)[0]
    assert kernels(apply, jnp.ones((2, 8, 8, 1))) == [(5, 5, 1, 6)]


def test_pictures_under_wide_strides_are_folded_and_nothing_else(monkeypatch):
    stem = ((256, 224, 224, 3), (7, 7, 3, 64), Window((2, 2), ((3, 3), (3, 3))))
    wide = ((256, 224, 224, 3), (11, 11, 3, 96), Window((4, 4), NONE))
    inner = ((256, 56, 56, 64), (3, 3, 64, 128), Window((2, 2), ((1, 1), (1, 1))))
    plain = ((256, 32, 32, 3), (3, 3, 3, 64), Window((1, 1), NONE))
    far = ((256, 32, 32, 3), (3, 3, 3, 64), Window((4, 4), NONE, dilation=(2, 2)))
    grouped = ((256, 32, 32, 4), (3, 3, 1, 64), Window((4, 4), NONE, groups=4))
    cases = (stem, wide, inner, plain, far, grouped)
    assert [folds("gpu", *case) for case in cases] == [True, True, False, False, False, False]
    assert not any(folds("cpu", *case) for case in cases)
    narrow = ((2000, 31, 31, 24), (3, 3, 24, 64), Window((1, 1), ((1, 1), (1, 1))))
    broad = ((2000, 15, 15, 64), (3, 3, 64, 256), Window((1, 1), ((1, 1), (1, 1))))
    single = ((2000, 15, 15, 16), (1, 1, 16, 16), Window((1, 1), NONE))
    assert [folds("gpu", *case, (2, 2)) for case in (narrow, broad, single)] == [True, False, False]
    assert not folds("cpu", *narrow, (2, 2))
    x, w = jnp.ones((2, 23, 23, 3)), jnp.ones((11, 11, 3, 8))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert kernels(lambda x: direct(x, w, Window((4, 4), NONE)), x) == [(3, 3, 48, 8)]


@pytest.mark.parametrize("n", [2, 4])
def test_neighbours_in_a_row_of_a_picture_are_computed_together(n, monkeypatch):
    net = serial(conv(6, 3, padding=((0, 1), (1, 0))), relu(), conv(4, (2, 3), bias=False))
    cols = {2: 6, 4: 8}[n]
    params, state = started(net, (7, cols + 1, 3))
    x = jax.random.normal(jax.random.key(1), (2, 7, cols + 1, 3))
    loss = lambda params, x: (net.apply(params, state, x, train=True)[0] ** 2).sum()
    plain = gradients(loss, params, x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # The second has more channels than a picture.
    assert kernels(loss, params, x) == [(3, 2, {2: 8, 4: 16}[n], 6 * n), (2, 3, 6, 4)]
    same(gradients(loss, params, x), plain)


def test_how_many_neighbours_is_for_pictures_whose_rows_they_divide():
    window = Window((1, 1), ((1, 1), (1, 1)))
    kernel = (3, 3, 3, 64)
    count = lambda image, kernel=kernel, window=window, backend="gpu": neighbours(
        backend, image, kernel, window
    )
    assert [count((256, 224, cols, 3)) for cols in (224, 26, 27)] == [4, 2, 1]
    assert count((256, 32, 32, 3), backend="cpu") == 1
    assert count((256, 32, 32, 3), (1, 1, 3, 64), Window((1, 1), NONE)) == 1
    assert count((256, 32, 32, 64), (3, 3, 64, 64)) == 1
    assert count((256, 32, 32, 4), (3, 3, 1, 64), Window((1, 1), ((1, 1), (1, 1)), groups=4)) == 1
    assert count((256, 33, 33, 3), window=Window((2, 2), ((1, 1), (1, 1)))) == 1


@pytest.mark.parametrize("sides", [(9, 8), (12, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_whitened_images_are_made_folded_where_the_next_layer_folds_them(sides, bias, monkeypatch):
    net = serial(whiten(2, bias=bias), gelu(), conv(6, 3, padding="same", bias=False), max_pool(2))
    params, state = started(net, (*sides, 3))
    x = jax.random.normal(jax.random.key(1), (3, *sides, 3))
    state = measure(net, params, state, x)
    loss = lambda params, x: (net.apply(params, state, x, train=True)[0] ** 2).sum()
    plain = gradients(loss, params, x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert kernels(loss, params, x) == [(2, 2, 16, 48), (2, 2, 96, 24)]
    same(gradients(loss, params, x), plain)


def test_whitened_images_stay_whole_where_nothing_folds_them(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    first = [whiten(2), gelu(), conv(96, 3, padding="same")]  # too many features to be folded
    for after in ([max_pool(2)], [relu()], []):
        net = serial(*first, *after)
        params, state, shape = net.init(jax.random.key(0), (8, 8, 3))
        apply = lambda x, net=net, params=params, state=state: net.apply(params, state, x, train=True)[0]
        assert kernels(apply, jnp.ones((2, 8, 8, 3)))[-1] == (3, 3, 24, 96)
        assert apply(jnp.ones((2, 8, 8, 3))).shape == (2, *shape)
    alone = replace(conv(6, 3, padding="same"), fused=None)  # narrow enough, but to be applied by itself
    net = serial(whiten(2), gelu(), alone, max_pool(2))
    params, state, _ = net.init(jax.random.key(0), (8, 8, 3))
    assert kernels(lambda x: net.apply(params, state, x)[0], jnp.ones((2, 8, 8, 3)))[-1] == (3, 3, 24, 6)


def test_evaluation_is_folded_and_gives_the_same(monkeypatch):
    norm = batch_norm(scale=False)
    net = serial(whiten(2), gelu(), conv(6, 3, padding="same", bias=False), max_pool(2), norm, gelu())
    params, state = started(net, (9, 8, 3))
    x = jax.random.normal(jax.random.key(1), (3, 9, 8, 3))
    state = list(measure(net, params, state, x))
    state[4] = {"mean": jnp.full(6, 0.3), "var": jnp.linspace(0.5, 2, 6)}
    evaluate = lambda x: net.apply(params, tuple(state), x)[0]
    plain = evaluate(x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert kernels(evaluate, x) == [(2, 2, 16, 48), (2, 2, 96, 24)]
    np.testing.assert_allclose(evaluate(x), plain, atol=1e-5)
    _, after = net.apply(params, tuple(state), x)
    assert after[4] is state[4]
