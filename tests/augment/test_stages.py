"""Augmentations that follow one another as a training goes on."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import augment as ck
from cnnkit.layers import conv, dense, global_pool, serial

KEY = jax.random.key(3)


def images(count=6, side=12):
    return jnp.asarray(np.random.default_rng(0).random((count, side, side, 1)), jnp.float32)


def test_every_epoch_has_its_stage():
    small, middle, whole = ck.crop(6), ck.crop(8), ck.flip(mode="alternate")
    made = ck.stages((small, 2), (middle, 1), whole)
    assert [made.at(epoch) for epoch in range(6)] == [small, small, middle, whole, whole, whole]
    assert whole.at(0) is whole
    x, index = images(), jnp.arange(6)
    for epoch, stage in ((0, small), (2, middle), (3, whole), (4, whole)):
        given = made(KEY, x, index=index, epoch=epoch)
        np.testing.assert_array_equal(given, stage(KEY, x, index=index, epoch=epoch))
    assert made.out_shape((12, 12, 1)) == (12, 12, 1)  # evaluation sees what the last stage does
    np.testing.assert_array_equal(made.test(x), x)
    np.testing.assert_array_equal(ck.stages((whole, 1), small).test(x), small.test(x))


def test_stages_of_one_size_go_by_an_epoch_that_is_traced():
    made = ck.stages((ck.crop(12, pad=2), 1), (ck.flip(rate=1.0), 2), ck.chain())
    go = jax.jit(lambda epoch: made(KEY, images(), epoch=epoch))
    for epoch in range(5):
        np.testing.assert_array_equal(go(jnp.int32(epoch)), made(KEY, images(), epoch=epoch))
    np.testing.assert_array_equal(go(1), images()[:, :, ::-1])


def test_they_are_recorded_and_made_again():
    made = ck.stages((ck.chain(ck.flip(), ck.crop(6)), 2), ck.crop(12, pad=1))
    again = ck.rebuild(made.describe())
    assert again.describe() == made.describe() != ck.stages((ck.crop(6), 2), ck.crop(12, pad=1)).describe()
    assert str(again) == "stages((flip() → crop(6), 2), crop(12, pad=1))"


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (ck.stages, TypeError, "stages: give it (augmentation, epochs) pairs"),
        (lambda: ck.stages((ck.flip, 2), ck.flip()), TypeError, "stages: part 0 is (<function flip"),
        (lambda: ck.stages((ck.flip(), ck.crop(6), 3)), TypeError, "stages: part 0 is (flip(), crop(6), 3), not an"),
        (lambda: ck.stages(ck.crop(6), ck.flip()), ValueError, "stages: epochs of part 0 must be a whole number"),
        (lambda: ck.stages((ck.crop(6), 0.5), ck.flip()), ValueError, "epochs of part 0 must be a whole number"),
        (lambda: ck.stages((ck.stages(ck.flip()), 1), ck.flip()), TypeError, "part 0 has stages itself"),
        (lambda: ck.chain(ck.flip(), ck.stages(ck.flip())), TypeError, "make stages of chains, not a chain of"),
        (lambda: ck.stages((ck.crop(6), 1), ck.flip())(KEY, images()), ValueError, "needs to know the epoch"),
        (
            lambda: jax.jit(lambda e: ck.stages((ck.crop(6), 1), ck.flip())(KEY, images(), epoch=e))(0),
            ValueError,
            "stages gives images of 6×6×1 and 12×12×1: only a Run trains on several sizes",
        ),
        (lambda: ck.stages((ck.crop(20), 1), ck.flip()).out_shape((12, 12, 1)), ValueError, "larger than the image"),
        (lambda: ck.stages(ck.flip()).sample(KEY, (6, 12, 12, 1)), ValueError, "augment.at(epoch).sample"),
    ],
)  # fmt: skip
def test_errors_say_what_was_wrong(call, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        call()


def net():
    return serial(conv(4, 3), global_pool(), dense(10))


@pytest.fixture(scope="module")
def digits():
    from cnnkit.data import load

    return load("digits").take(train=203, test=50)


def run(digits, augment, watch=None, **settings):
    from cnnkit.train.run import Run
    from tests.train.conftest import Quiet

    return Run(net(), digits, batch=32, augment=augment, watch=watch or Quiet(), epochs=4, **settings)


def weights(run):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])


SIZES = ck.stages((ck.crop(6), 2), ck.crop(8, pad=1))


@pytest.mark.parametrize("settings", [{}, {"dispatch": "epoch"}, {"workers": 2}])
def test_a_run_trains_on_several_sizes_with_a_program_for_each(digits, settings):
    both = run(digits, SIZES, **settings)
    both.fit(2)
    small = run(digits, ck.crop(6), **settings)
    small.fit(2)
    np.testing.assert_array_equal(weights(both), weights(small))
    assert both.engine.compilations() == small.engine.compilations()
    both.fit(4)
    assert both.engine.compilations() == 2 * small.engine.compilations()
    assert np.abs(weights(both) - weights(small.fit(4))).max() > 1e-3


def test_a_run_resumes_in_the_stage_that_it_was_in(digits, tmp_path):
    straight = run(digits, SIZES).fit()
    run(digits, SIZES, folder=tmp_path).fit(3)
    resumed = run(digits, SIZES, folder=tmp_path)
    np.testing.assert_allclose(weights(resumed.fit(4)), weights(straight), atol=1e-6)
    assert resumed.engine.compilations() == 1


def test_sizes_for_which_weights_differ_are_refused_at_once(digits):
    from cnnkit.train.run import Run

    text = (
        "in the stage crop(6) layer 1 dense 10 would have weights of shape (64, 10), in the last one (144, 10); "
        "take sizes for which all weights are the same, or put a global_pool() before that layer"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        Run(serial(conv(4, 3), dense(10)), digits, augment=ck.stages((ck.crop(6), 1), ck.crop(8)))
