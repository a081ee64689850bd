"""Crop and flip: exact pixels, and the laws of their draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import augment as ck

MODES = {
    "background": {"mode": "constant", "constant_values": 9},
    "reflect": {"mode": "reflect"},
    "edge": {"mode": "edge"},
}


def numbered(count, height, width, channels=2, dtype=np.float32):
    """Images whose every pixel has a number of its own."""
    made = np.arange(height * width * channels).reshape(height, width, channels)
    return np.stack([made % 250] * count).astype(dtype)


@pytest.mark.parametrize("outside", MODES)
def test_crop_cuts_every_place_of_the_padded_image_and_no_other(outside):
    x = numbered(600, 5, 4)
    padded = np.pad(x[0], ((2, 2), (2, 2), (0, 0)), **MODES[outside])
    places = {padded[i : i + 6, j : j + 3].tobytes(): (i, j) for i in range(4) for j in range(6)}
    augment = ck.crop((6, 3), pad=2, outside=outside, background=9 * (outside == "background"))
    out = np.asarray(augment(jax.random.key(0), x))
    found = [places[one.tobytes()] for one in out]
    counts = {place: found.count(place) for place in places.values()}
    assert len(counts) == 24
    assert min(counts.values()) > 8  # 25 expected of each
    assert max(counts.values()) < 45


def test_crop_rows_and_columns_are_independent():
    (move,) = ck.crop(24).sample(jax.random.key(0), (4000, 32, 32, 3))
    starts = np.stack([move.rows[:, 0], move.columns[:, 0]])
    assert starts.min() == 0
    assert starts.max() == 8
    assert abs(np.corrcoef(starts)[0, 1]) < 0.05
    assert starts.mean(1) == pytest.approx([4, 4], abs=0.15)


def test_crop_of_the_whole_image_is_the_image():
    x = numbered(3, 5, 4)
    np.testing.assert_array_equal(ck.crop((5, 4))(jax.random.key(0), x), x)


@pytest.mark.parametrize("outside", MODES)
def test_crop_in_evaluation_is_the_middle_of_the_padded_image(outside):
    x = numbered(2, 5, 4)
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), **MODES[outside])
    np.testing.assert_array_equal(ck.crop((4, 3), pad=2).test(x), x[:, 0:4, 0:3])
    got = ck.crop((7, 6), pad=2, outside=outside, background=9 * (outside == "background")).test(x)
    np.testing.assert_array_equal(got, padded[:, 1:8, 1:7])


@pytest.mark.parametrize(
    ("axis", "mirror"), [("horizontal", np.s_[:, :, ::-1]), ("vertical", np.s_[:, ::-1])]
)
def test_flip_mirrors_the_stated_fraction_of_images_whole(axis, mirror):
    x = numbered(2000, 4, 3)
    out = np.asarray(ck.flip(axis=axis)(jax.random.key(0), x))
    mirrored = (out == x[mirror]).all((1, 2, 3))
    assert ((out == x).all((1, 2, 3)) ^ mirrored).all()
    assert mirrored.mean() == pytest.approx(0.5, abs=0.04)
    assert np.mean(mirrored[1:] == mirrored[:-1]) == pytest.approx(0.5, abs=0.04)
    seldom = np.asarray(ck.flip(axis=axis, rate=0.1)(jax.random.key(0), x)) != x
    assert seldom.any((1, 2, 3)).mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(("rate", "mirror"), [(0.0, 1), (1.0, -1)])
def test_flip_never_and_always(rate, mirror):
    x = numbered(50, 4, 3)
    np.testing.assert_array_equal(ck.flip(rate=rate)(jax.random.key(0), x), x[:, :, ::mirror])


def test_alternate_flip_mirrors_each_example_every_second_epoch():
    index = jnp.asarray([5, 3, 0, *range(100, 600)])
    x, augment, key = numbered(len(index), 2, 3), ck.flip(mode="alternate"), jax.random.key(0)
    mirrored = [
        np.asarray(augment(key, x, index=index, epoch=epoch) != x).any((1, 2, 3)) for epoch in range(3)
    ]
    assert (mirrored[0] ^ mirrored[1]).all()
    np.testing.assert_array_equal(mirrored[0], mirrored[2])
    assert mirrored[0].mean() == pytest.approx(0.5, abs=0.06)
    assert np.mean(mirrored[0][3::2]) == pytest.approx(0.5, abs=0.1)  # no parity of the index
    turned = augment(jax.random.key(1), x[::-1], index=index[::-1], epoch=0) != x[::-1]
    np.testing.assert_array_equal(np.asarray(turned).any((1, 2, 3)), mirrored[0][::-1])


def test_a_chain_of_moves_is_the_moves_one_after_another():
    x = numbered(40, 6, 5)
    parts = [
        ck.crop(6, pad=2, background=7),
        ck.flip(),
        ck.crop((3, 4)),
        ck.flip(axis="vertical"),
        ck.crop(4, pad=1, background=7),
    ]
    augment, key = ck.chain(*parts), jax.random.key(2)
    expected = jnp.asarray(x)
    for part, move in zip(parts, augment.sample(key, x.shape), strict=True):
        expected = jax.jit(part.kind.act)(expected, move, 7)
    np.testing.assert_array_equal(augment(key, x), expected)


def test_moves_with_different_backgrounds_keep_their_own():
    x = numbered(200, 2, 2) * 0
    out = np.asarray(
        ck.chain(ck.crop(4, pad=2, background=1), ck.crop(6, pad=2, background=2))(jax.random.key(0), x)
    )
    assert set(np.unique(out)) == {0, 1, 2}


def test_moves_take_bytes_as_they_are():
    x = numbered(30, 6, 5, dtype=np.uint8)
    augment, key = ck.chain(ck.flip(), ck.crop(6, pad=1, background=3)), jax.random.key(1)
    out = augment(key, x)
    assert out.dtype == jnp.uint8
    np.testing.assert_array_equal(out, augment(key, x.astype(np.float32)).astype(np.uint8))
