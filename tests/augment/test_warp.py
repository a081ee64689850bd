"""Scale, rotate, translate and elastic distortion against NumPy, and the laws of their draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import augment as ck
from cnnkit.augment import warp
from cnnkit.augment.warp import Warp, bipolar, join
from tests.augment import reference

resample = jax.jit(warp.resample)
MANY = (4000, 6, 6, 1)


def images(count, height, width, channels, seed=0):
    made = np.random.default_rng(seed).random((count, height, width, channels))
    return made.astype(np.float32)


def draws(augment, shape=MANY, seed=0):
    (drawn,) = augment.sample(jax.random.key(seed), shape)
    return np.asarray(drawn.matrix), None if drawn.field is None else np.asarray(drawn.field)


def whole(matrix, height, width):
    return reference.about_middle(matrix[:, :2], matrix[:, 2], height, width)


@pytest.mark.parametrize("background", [0.0, 0.7])
def test_resampling_is_bilinear_with_the_background_outside(background):
    x = images(3, 7, 9, 2)
    rng = np.random.default_rng(1)
    linear = (np.eye(2, 3) + rng.normal(size=(3, 2, 3)) * [0.3, 0.3, 2]).astype(np.float32)
    field = rng.normal(size=(3, 2, 7, 9)).astype(np.float32) * 2
    got = resample(jnp.asarray(x), Warp(jnp.asarray(linear), jnp.asarray(field)), background)
    for i in range(3):
        expected = reference.affine(x[i], whole(linear[i], 7, 9), field[i], background)
        np.testing.assert_allclose(got[i], expected, atol=2e-5)


def test_resampling_by_nothing_is_exact():
    x = images(2, 8, 9, 1)
    for augment in (ck.scale(0), ck.rotate(0), ck.translate(0), ck.elastic(0)):
        np.testing.assert_array_equal(augment(jax.random.key(0), x), x)


def test_far_outside_there_is_background_only():
    far = Warp(jnp.asarray([[[1.0, 0, 1e9], [0, 1.0, -1e9]]]))
    np.testing.assert_array_equal(resample(jnp.ones((1, 4, 4, 1)), far, 0.25), np.full((1, 4, 4, 1), 0.25))


@pytest.mark.parametrize("background", [0.0, 1.0])
def test_a_chain_is_one_affine_resampling(background):
    """Three matrices multiplied in float64, then one interpolation, as plain NumPy does it."""
    x = images(5, 9, 8, 2)
    parts = [f(v, background=background) for f, v in ((ck.scale, 30), (ck.rotate, 40), (ck.translate, 2))]
    augment, key = ck.chain(*parts), jax.random.key(7)
    got = augment(key, x)
    matrices = [np.asarray(drawn.matrix) for drawn in augment.sample(key, x.shape)]
    for i in range(5):
        first, second, third = (whole(m[i], 9, 8) for m in matrices)
        expected = reference.affine(x[i], first @ second @ third, None, background)
        np.testing.assert_allclose(got[i], expected, atol=2e-5)


def test_a_chain_with_elastic_in_the_middle_is_one_resampling_too():
    x = images(4, 9, 8, 1)
    augment, key = ck.chain(ck.rotate(30), ck.elastic(5), ck.scale(20), ck.elastic(3)), jax.random.key(7)
    got = augment(key, x)
    turn, bend, grow, bend_again = augment.sample(key, x.shape)
    for i in range(4):
        rotation = np.asarray(turn.matrix[i], np.float64)
        growth = np.asarray(grow.matrix[i], np.float64)
        field = np.einsum("ij,jyx->iyx", rotation[:, :2], np.asarray(bend.field[i], np.float64))
        field += np.einsum("ij,jyx->iyx", rotation[:, :2] @ growth[:, :2], np.asarray(bend_again.field[i]))
        expected = reference.affine(x[i], whole(rotation, 9, 8) @ whole(growth, 9, 8), field)
        np.testing.assert_allclose(got[i], expected, atol=2e-5)


def test_joined_means_first_and_then_second():
    """On a smooth image one joined resampling is nearly two separate ones, and not the other order's."""
    y, x = np.mgrid[:33, :33] - 16.0
    blob = np.exp(-((x - 2) ** 2 / 20 + (y + 3) ** 2 / 10)).astype(np.float32)[None, :, :, None]
    shift = Warp(jnp.asarray([[[1.0, 0, 5], [0, 1, -2]]]))
    turn = Warp(jnp.asarray([[[0.8, 0.6, 0], [-0.6, 0.8, 0]]]))
    two = resample(resample(blob, shift), turn)
    np.testing.assert_allclose(resample(blob, join(shift, turn)), two, atol=0.03)
    assert np.abs(np.asarray(resample(blob, join(turn, shift)) - two)).max() > 0.3


def test_views_turn_anticlockwise_shift_down_and_right_and_enlarge():
    x = images(2, 6, 6, 3)
    np.testing.assert_allclose(ck.view(x, degrees=90.0), np.rot90(x, axes=(1, 2)), atol=1e-5)
    moved = np.full_like(x, 0.5)
    moved[:, 2:, 1:] = x[:, :-2, :-1]
    np.testing.assert_allclose(ck.view(x, shift=(2, 1), background=0.5), moved, atol=1e-6)
    dot = np.zeros((1, 9, 9, 1), np.float32)
    dot[0, 4, 2] = 1  # two to the left of the middle: four after doubling the horizontal
    grown = np.asarray(ck.view(dot, scale=(1.0, 2.0)))[0, :, :, 0]
    assert grown[4, 0] == pytest.approx(1)
    np.testing.assert_allclose(grown.sum(1), [0, 0, 0, 0, 1.5, 0, 0, 0, 0], atol=1e-6)


def test_views_scale_before_they_turn():
    x = images(1, 9, 9, 1)
    both = ck.view(x, scale=(1.0, 0.5), degrees=90.0)
    np.testing.assert_allclose(both, np.rot90(ck.view(x, scale=(1.0, 0.5)), axes=(1, 2)), atol=1e-5)


def test_scale_goes_both_ways_and_each_direction_by_itself():
    matrix, _ = draws(ck.scale(12))
    vertical, horizontal = 1 / matrix[:, 0, 0], 1 / matrix[:, 1, 1]
    for factor in (vertical, horizontal):
        assert factor.min() == pytest.approx(0.88, abs=2e-3)
        assert factor.max() == pytest.approx(1.12, abs=2e-3)
        assert factor.mean() == pytest.approx(1, abs=4e-3)
        assert factor.std() == pytest.approx(0.12 / 3**0.5, rel=0.04)
        assert np.mean(factor > 1) == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(vertical, horizontal)[0, 1]) < 0.05
    assert np.abs(matrix[:, [0, 1], [1, 0]]).max() == 0
    both, _ = draws(ck.scale(12, together=True))
    np.testing.assert_array_equal(both[:, 0, 0], both[:, 1, 1])
    assert both[:, 0, 0].std() > 0.05


def test_rotation_goes_both_ways_up_to_the_angle():
    matrix, _ = draws(ck.rotate(12))
    angle = np.degrees(np.arctan2(matrix[:, 0, 1], matrix[:, 0, 0]))
    assert angle.min() == pytest.approx(-12, abs=0.05)
    assert angle.max() == pytest.approx(12, abs=0.05)
    assert angle.mean() == pytest.approx(0, abs=0.3)
    assert angle.std() == pytest.approx(12 / 3**0.5, rel=0.04)
    np.testing.assert_allclose(np.linalg.det(matrix[:, :, :2]), 1, atol=1e-6)


def test_translation_is_independent_in_the_two_directions():
    matrix, _ = draws(ck.translate(2))
    shift = matrix[:, :, 2]
    assert np.abs(shift).max() == pytest.approx(2, abs=0.01)
    assert shift.mean(0) == pytest.approx([0, 0], abs=0.06)
    assert shift.std(0) == pytest.approx([2 / 3**0.5] * 2, rel=0.04)
    assert abs(np.corrcoef(shift.T)[0, 1]) < 0.05


def test_field_is_noise_smoothed_by_the_square_gaussian_with_zeros_outside():
    augment, shape = ck.elastic(3.4), (2, 13, 17, 1)
    (drawn,) = augment.sample(jax.random.key(3), shape)
    noise = bipolar(jax.random.bits(jax.random.key(3), (2, 111), jnp.uint32), (2, 17, 13))
    for i in range(2):
        for axis in (0, 1):
            expected = 3.4 * reference.smoothed(np.asarray(noise[i, axis]).T, reference.gaussian())
            np.testing.assert_allclose(drawn.field[i, axis], expected, atol=1e-4)


def test_field_has_the_stated_deviation_inside_and_less_at_the_border():
    _, field = draws(ck.elastic(3.4), (2000, 28, 28, 1))
    middle, corner = field[:, :, 13:15, 13:15], field[:, :, 0, 0]
    # Full support needs 10 pixels on every side; the sum of squares over it is 1/4π, that of noise 1/3.
    assert middle.std() == pytest.approx(3.4 / np.sqrt(12 * np.pi), rel=0.03)
    assert middle.std() == pytest.approx(0.55, abs=0.02)
    quarter = np.sqrt((reference.gaussian()[10:, 10:] ** 2).sum() / 3) * 3.4
    assert corner.std() == pytest.approx(quarter, rel=0.05)
    assert abs(middle.mean()) < 0.03


def test_fields_are_independent_in_direction_and_between_images():
    _, field = draws(ck.elastic(3.4), (2000, 28, 28, 1))
    down, right = field[:, 0], field[:, 1]
    for a, b in ((down, right), (down[1:], down[:-1]), (down, right.swapaxes(1, 2))):
        assert abs(np.corrcoef(a[:, 14, 14], b[:, 14, 14])[0, 1]) < 0.08
        assert abs(np.corrcoef(a[:, 5, 9], b[:, 5, 9])[0, 1]) < 0.08
    neighbours = np.corrcoef(down[:, 14, 14], down[:, 14, 15])[0, 1]
    assert neighbours == pytest.approx(np.exp(-1 / 64), abs=0.01)  # exp(−r²/4σ²), σ = 4


def test_noise_under_the_field_is_uniform():
    noise = np.asarray(bipolar(jax.random.bits(jax.random.key(0), (50, 1000), jnp.uint32), (4000,)))
    assert noise.mean() == pytest.approx(0, abs=0.005)
    assert noise.std() == pytest.approx(1 / 3**0.5, rel=0.01)
    assert -1 < noise.min() < -0.99 < 0.99 < noise.max() < 1
    quarters = noise.reshape(50, 4, 1000)
    assert abs(np.corrcoef(quarters.swapaxes(0, 1).reshape(4, -1)) - np.eye(4)).max() < 0.02
