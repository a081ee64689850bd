"""Noise, brightness, contrast, cutout and normalize against NumPy, and the laws of their draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import augment as ck
from cnnkit.augment.pixels import normal

KEY = jax.random.key(0)


def images(count, height=6, width=5, channels=3):
    made = np.random.default_rng(0).random((count, height, width, channels))
    return made.astype(np.float32)


def test_noise_is_gaussian_and_each_image_has_its_own():
    added = np.asarray(ck.noise(0.1)(KEY, np.full((500, 9, 7, 3), 0.5, np.float32))) - 0.5
    assert added.mean() == pytest.approx(0, abs=1e-3)
    assert added.std() == pytest.approx(0.1, rel=0.01)
    assert np.mean(np.abs(added) < 0.1) == pytest.approx(0.6827, abs=0.005)
    assert np.mean(np.abs(added) > 0.2) == pytest.approx(0.0455, abs=0.003)
    assert (added**4).mean() / added.var() ** 2 == pytest.approx(3, abs=0.1)
    flat = added.reshape(500, -1)
    assert abs(np.corrcoef(flat[:-1].ravel(), flat[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(flat[:, :-1].ravel(), flat[:, 1:].ravel())[0, 1]) < 0.01


def test_normal_numbers_are_finite_at_both_ends_of_the_words():
    words = jnp.asarray([[0, 2**32 - 1, 2**31]], jnp.uint32)
    low, high, middle = np.asarray(normal(words, (3,)))[0]
    assert low == -high
    assert 5 < high < 5.5
    assert abs(middle) < 1e-6


def test_brightness_adds_one_number_to_each_image():
    x = images(2000)
    added = np.asarray(ck.brightness(0.2)(KEY, x)) - x
    each = added.mean((1, 2, 3))
    np.testing.assert_allclose(added, np.broadcast_to(each[:, None, None, None], added.shape), atol=1e-6)
    assert np.abs(each).max() == pytest.approx(0.2, abs=1e-3)
    assert each.mean() == pytest.approx(0, abs=0.01)
    assert each.std() == pytest.approx(0.2 / 3**0.5, rel=0.05)


def test_contrast_stretches_about_the_mean_of_each_image():
    x = images(2000)
    out = np.asarray(ck.contrast(0.3)(KEY, x))
    middle = x.mean((1, 2, 3), keepdims=True)
    factor = ((out - middle) * (x - middle)).sum((1, 2, 3)) / ((x - middle) ** 2).sum((1, 2, 3))
    np.testing.assert_allclose(out, middle + factor[:, None, None, None] * (x - middle), atol=1e-5)
    assert factor.min() == pytest.approx(0.7, abs=3e-3)
    assert factor.max() == pytest.approx(1.3, abs=3e-3)
    assert factor.mean() == pytest.approx(1, abs=0.02)


def test_cutout_blanks_a_square_clipped_at_the_border_around_any_pixel():
    out = np.asarray(ck.cutout(3, background=0.5)(KEY, np.ones((3000, 7, 6, 2), np.float32)))
    assert set(np.unique(out)) == {0.5, 1.0}
    hidden = out[..., 0] == 0.5
    np.testing.assert_array_equal(hidden, out[..., 1] == 0.5)
    rows, columns = hidden.any(2), hidden.any(1)
    np.testing.assert_array_equal(hidden, rows[:, :, None] & columns[:, None, :])
    assert set(np.unique(rows.sum(1))) == set(np.unique(columns.sum(1))) == {2, 3}
    # An odd square reaches one pixel around its middle, so a corner is hidden by 2·2 of the 7·6 middles.
    assert hidden[:, 0, 0].mean() == pytest.approx(4 / 42, abs=0.02)
    assert hidden[:, 3, 3].mean() == pytest.approx(9 / 42, abs=0.03)


@pytest.mark.parametrize("mean", [0.5, [0.1, 0.2, 0.3], np.random.default_rng(1).random((6, 5, 3))])
def test_normalize_is_the_formula(mean):
    x = images(4)
    expected = (x - np.asarray(mean)) / np.array([0.2, 0.3, 0.4])
    augment = ck.normalize(mean, (0.2, 0.3, 0.4))
    np.testing.assert_allclose(augment(KEY, x), expected, atol=1e-5)
    np.testing.assert_allclose(augment.test(x), expected, atol=1e-5)
