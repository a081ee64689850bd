"""The contact sheet: which pixels stand where."""

import sys

import jax
import numpy as np
import pytest

from cnnkit import augment as ck
from cnnkit.data import from_arrays
from cnnkit.notebook.augmented import GAP, _shown, contact_sheet


def images(count=5, height=6, width=4, channels=1):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels)).astype(np.uint8)


def sheet(figure):
    """The picture without its title strips, and the titles."""
    (ax,) = figure.axes
    return np.asarray(ax.images[0].get_array()), [text.get_text() for text in ax.texts]


def test_originals_come_first_and_then_a_block_for_each_augmentation():
    x = images()
    pixels, titles = sheet(contact_sheet(x, [ck.flip(rate=1.0), ck.crop((4, 2))], count=3))
    assert titles == ["as they are", "flip(rate=1)", "crop((4, 2))"]
    strip = len(pixels) - 6 - 2 * (12 + GAP)
    assert strip % 3 == 0
    strip //= 3
    assert pixels.shape[1] == 3 * 4 + 2 * GAP
    top = strip
    for i in range(3):
        left = i * (4 + GAP)
        np.testing.assert_allclose(pixels[top : top + 6, left : left + 4, 0], x[i, ..., 0] / 255, atol=1e-6)
    top += 6 + strip
    for draw in range(2):
        at = top + draw * (6 + GAP)
        np.testing.assert_allclose(pixels[at : at + 6, :4, 0], x[0, :, ::-1, 0] / 255, atol=1e-6)
    top += 12 + GAP + strip
    assert (pixels[top] == 1).all()  # a smaller result stands in the middle of its white cell
    assert (pixels[top + 1 : top + 5, 1:3] < 1).any()


def test_a_dataset_shows_one_image_of_each_class_and_normalized_values_are_stretched():
    x = images(6, channels=3)
    data = from_arrays(x, np.array([1, 1, 0, 2, 0, 2]), x, np.array([0, 1, 2, 0, 1, 2]))
    pixels, titles = sheet(contact_sheet(data, ck.normalize(0.5, 0.1), draws=1))
    assert titles[1] == "normalize(0.5, 0.1)"
    staged = ck.stages((ck.normalize(0.5, 0.1), 1), ck.normalize(0.5, 0.2))

    assert [float(m.max()) for m in _shown(staged, [np.array([-5.0, 0.0]), np.array([5.0])])] == [0.5, 1.0]
    assert pixels.shape[1] == 3 * 4 + 2 * GAP
    strip = (len(pixels) - 12) // 2
    np.testing.assert_allclose(pixels[strip : strip + 6, :4], x[2] / 255, atol=1e-6)
    values = x[[2, 0, 3]] / 255
    expected = (values - values.min()) / (values.max() - values.min())
    np.testing.assert_allclose(pixels[-6:, :4], expected[0], atol=1e-5)


def test_the_same_key_draws_the_same_sheet_without_pyplot():
    x, augment = images(), ck.rotate(45)
    one, again, other = (sheet(contact_sheet(x, augment, key=k))[0] for k in (3, jax.random.key(3), 4))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    assert contact_sheet(x, augment).png(dpi=40)[:4] == b"\x89PNG"
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize("shape", [(0, 4, 4, 1), (3, 4, 4), (3, 4, 4, 2)])
def test_images_that_cannot_be_shown_are_named(shape):
    with pytest.raises(ValueError, match=r"a contact sheet takes images \[N, H, W, 1\] or .* got shape \("):
        contact_sheet(np.zeros(shape, np.float32), ck.flip())
