"""Convolutions as products of spectra: of small images by matrices, of one axis at a time, and by fast transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnkit.layers import convolve, spectra
from cnnkit.layers.convolve import fft
from cnnkit.layers.product import Window
from cnnkit.layers.spectra import Axis, by_matrices, forms
from cnnkit.layers.window import ShapeError, out_size
from tests import reference

pads = st.tuples(st.integers(0, 4), st.integers(0, 4))
pairs = lambda least, most: st.tuples(st.integers(least, most), st.integers(least, most))
windows = st.builds(Window, pairs(1, 3), st.tuples(pads, pads), pairs(1, 3), st.integers(1, 3))


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


@pytest.mark.parametrize("at_once", [False, True], ids=["axis by axis", "both axes at once"])
@settings(max_examples=40, deadline=None)
@given(window=windows, image=pairs(1, 11), kernel=pairs(1, 6))
def test_any_window_over_any_image_gives_what_the_definition_does(at_once, window, image, kernel):
    try:
        out_size(image, kernel, window.stride, window.pads, window.dilation)
    except ShapeError:
        return
    g = window.groups
    x, w = drawn(2, *image, 2 * g), drawn(*kernel, 2, 3 * g)
    wanted = reference.conv(x, w, window.stride, window.pads, window.dilation, g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectra, "at_once", lambda *sizes: at_once)
        y = by_matrices(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32), window)
    np.testing.assert_allclose(y, wanted, atol=3e-5)


# side, channels, kernel, and the first matrix's rows where there is one
WAYS = {
    "both axes at once": (6, 16, 3, 1 + 3 * 24),
    "axis by axis": (18, 2, 3, 1 + 3 * 9),
    "fast transforms": (67, 1, 3, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_way_goes_by_the_sizes_and_its_gradients_are_right(way):
    side, channels, size, rows = WAYS[way]
    x, w = drawn(2, side, side, channels), drawn(size, size, channels, channels)
    window = Window((1, 1), ((1, 1), (1, 1)))
    y = reference.conv(x, w, pads=window.pads)
    dy, far_x, far_w = drawn(*y.shape, seed=1), drawn(*x.shape, seed=2), drawn(*w.shape, seed=3)

    @jax.jit
    def both(x, w, dy):
        z, back = jax.vjp(lambda x, w: fft(x, w, window), x, w)
        return z, back(dy)

    given = [jnp.asarray(a, jnp.float32) for a in (x, w, dy)]
    text = both.lower(*given).as_text()
    assert ("stablehlo.fft" in text) == (rows is None)
    assert rows is None or f"tensor<{rows}x" in text
    z, (dx, dw) = both(*given)
    np.testing.assert_allclose(z, y, atol=1e-4)
    # Linear in the image and in the kernel, so that a step far away has an exact difference.
    for found, far, moved in ((dx, far_x, (far_x, w)), (dw, far_w, (x, far_w))):
        wanted = (dy * reference.conv(*moved, pads=window.pads)).sum()
        assert (np.float64(found) * far).sum() == pytest.approx(wanted, rel=2e-5, abs=2e-3)


def test_a_circular_convolution_takes_fewer_products_than_its_kernel_has_pixels():
    """12×12 images under 5×5 windows at every pixel: 144 · 25 products an image and pair of channels directly."""
    side = tuple(range(12))
    axis = Axis(14, side, tuple(range(5)), tuple(i - 2 for i in range(12)))
    image, kernel, output = forms(axis, axis)
    # 14² real numbers are 4 real frequencies and 96 pairs, which take three products each.
    assert len(image) == len(kernel) == output.shape[1] == 4 + 3 * 96
    x, w = drawn(12, 12), drawn(5, 5)
    y = output @ ((image @ x.ravel()) * (kernel @ w.ravel()))
    wanted = reference.conv(x[None, :, :, None], w[:, :, None, None], pads=((2, 2), (2, 2)))
    np.testing.assert_allclose(y, wanted.ravel(), atol=2e-5)


def test_on_other_backends_transforms_are_fast_ones(monkeypatch):
    monkeypatch.setattr(convolve.jax, "default_backend", lambda: "gpu")
    x, w = jnp.ones((1, 8, 8, 1)), jnp.ones((3, 3, 1, 1))
    text = jax.jit(lambda x, w: fft(x, w, Window((1, 1), ((0, 0), (0, 0))))).lower(x, w).as_text()
    assert "stablehlo.fft" in text
