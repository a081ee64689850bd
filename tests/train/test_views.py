"""Views of an image in evaluation: which there are, what they weigh, and that only the unsure are looked at again."""

import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import serial
from cnnkit.train.views import Views
from tests.train.conftest import tiny_net


def by_hand(image):
    """The six views of one image [H, W, C], with their weights."""
    wide = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    places = [(image, 0.25), (wide[:-2, :-2], 0.125), (wide[2:, 2:], 0.125)]
    return [(view, weight) for place, weight in places for view in (place, place[:, ::-1])]


def test_the_six_views_and_their_weights():
    x = np.random.default_rng(0).random((2, 5, 4, 3)).astype(np.float32)
    views = Views()
    for i in range(2):
        for found, weight, (want, wanted) in zip(views.of(x), views.weights, by_hand(x[i]), strict=True):
            assert weight == wanted
            np.testing.assert_array_equal(found[i], want)
    assert Views(mirror=False).weights == [0.5, 0.25, 0.25]
    assert Views(shift=0).weights == [0.5, 0.5]
    assert Views(mirror=False, shift=0).unsure_of(100) == 0
    assert Views(unsure=0.25).unsure_of(101) == 26


@pytest.mark.parametrize("unsure", [0.0, 0.3, 1.0])
def test_only_the_least_certain_are_looked_at_again(make, digits, unsure):
    plain, run = make(epochs=1).fit(), make(epochs=1, views=Views(unsure=unsure), judge=())
    run.fit()
    once, found = plain.predict("test", batch=40), run.predict("test", batch=40)
    w, b = (np.asarray(plain.params[0][k]) for k in ("w", "b"))
    x = np.asarray(plain.task.inputs(jnp.asarray(digits.test.images)))
    logits = np.array(
        [sum(v.reshape(-1) @ w * weight for v, weight in by_hand(image)) + b for image in x], np.float64
    )
    viewed = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    again = np.argsort(once.max(1))[: int(np.ceil(unsure * len(once)))]
    want = once.copy()
    want[again] = viewed[again]
    np.testing.assert_allclose(found, want, atol=1e-5)
    judged = run.evaluate("test")
    assert judged["accuracy"] == (want.argmax(1) == digits.test.labels).mean()
    assert judged["loss"] == pytest.approx(-np.log(want[np.arange(101), digits.test.labels]).mean(), rel=1e-4)


def test_views_come_back_with_the_run(make, digits, tmp_path):
    from cnnkit.train.run import Run

    make(serial(tiny_net()), epochs=1, folder=tmp_path, views=Views(mirror=False, unsure=0.5))
    run = make(serial(tiny_net()), epochs=1, folder=tmp_path, views=Views(mirror=False, unsure=0.5)).fit()
    assert Run.load(tmp_path, data=digits).task.views == run.task.views


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shift": -1}, "views: shift is -1; it must be a whole number of pixels, 0 or more"),
        ({"unsure": 1.5}, "views: unsure is 1.5; it is a part of the images, from 0 to 1"),
    ],
)
def test_views_that_cannot_be_say_so(settings, message):
    with pytest.raises(ValueError, match=message):
        Views(**settings)
