"""Layers that learn no more from some epoch on."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import conv, dense, relu, serial
from cnnkit.train import optim
from cnnkit.train.flock import Flock
from tests.train.conftest import Quiet, flat


def net():
    return serial(conv(4, 3, decay=1e-2), relu(), conv(3, 3), relu(), dense(10))


def made(digits, **settings):
    from cnnkit.train.run import Run

    settings = {"optimizer": optim.sgd(0.1, momentum=0.9), "epochs": 3, "watch": Quiet()} | settings
    return Run(settings.pop("net", None) or net(), digits, batch=32, **settings)


def apart(run):
    """The weights of the first layer, of the second convolution, and of the last layer."""
    return [flat(part) for part in run.params[::2]]


@pytest.mark.parametrize(
    "settings",
    [{}, {"dispatch": "epoch"}, {"workers": 2, "fetch": 2}, {"workers": 2, "mode": "accumulate"}],
    ids=["one", "whole epochs", "local", "accumulate"],
)
def test_frozen_layers_stay_and_the_others_go_on(digits, settings):
    run = made(digits, freeze=[(1, 1), (2, 3)], **settings)
    at = [apart(run.fit(epochs)) for epochs in (1, 2, 3)]
    moved = lambda layer, epoch: np.abs(at[epoch][layer] - at[epoch - 1][layer]).max()
    # Momentum and decay would have moved them without a gradient.
    assert [moved(0, 1), moved(0, 2), moved(1, 2)] == [0, 0, 0]
    assert min(moved(1, 1), moved(2, 1), moved(2, 2)) > 1e-3
    free = made(digits, **settings)
    free.fit(1)
    np.testing.assert_array_equal(flat(free.params), np.concatenate(at[0]))


@pytest.mark.parametrize(
    "rules",
    [
        {"outer": "nesterov", "delay": 1, "payload": "int8", "exchange": "redundant"},
        {"mode": "accumulate", "delay": 1},
    ],
    ids=lambda rules: " ".join(map(str, rules.values())),
)
def test_what_is_on_its_way_arrives_before_layers_are_frozen_and_nothing_after(digits, tmp_path, rules):
    from cnnkit.train.run import Run

    settings = {"net": serial(dense(8), relu(), dense(10)), "workers": 2, "freeze": [(1, 1)], "judge": ()}
    settings |= rules
    run = made(digits, **settings)
    at = [[flat(part) for part in run.fit(epochs).params[::2]] for epochs in (1, 2, 3)]
    moved = lambda layer, epoch: np.abs(at[epoch][layer] - at[epoch - 1][layer]).max()
    assert [moved(0, 1), moved(0, 2)] == [0, 0]
    assert min(moved(1, 1), moved(1, 2)) > 1e-3
    # Gone on with where the layer was just frozen, when it long was, and by others.
    made(digits, **settings, folder=tmp_path).fit(1)
    load = lambda **changes: Run.load(tmp_path, data=digits, watch=Quiet(), **changes)
    np.testing.assert_array_equal(flat(load().fit(3).params), flat(run.params))
    np.testing.assert_array_equal(flat(load().params[0]), at[2][0])
    if "payload" not in rules:
        np.testing.assert_array_equal(flat(load(workers=3).fit(4).params[0]), at[2][0])


def test_no_gradient_goes_back_to_frozen_layers(digits):
    task = made(digits, freeze=[(1, 1)]).task
    model = task.init(jax.random.key(0), digits.shape)
    from cnnkit.train.task import MiniBatch

    images, labels = digits.train.images[:8], digits.train.labels[:8]
    batch = MiniBatch(images, labels, jnp.ones(8), jax.random.key(1), jnp.arange(8), 0)

    def work(task):
        return jax.jit(task.gradient).lower(model, batch).compile().cost_analysis()["flops"]

    assert work(task.at(0)) == work(task)
    # Neither the gradient of the first kernel (3×3×4 at 6×6 pixels) nor that of the second one's input is taken.
    assert work(task) - work(task.at(1)) > 8 * 2 * 36 * (9 * 4 + 9 * 4 * 3) * 0.4
    grads = task.at(1).gradient(model, batch)[0]
    assert np.abs(flat(grads[0])).max() == 0 < np.abs(flat(grads[2])).max()
    assert task.at(5) is task.at(1) is not task.at(0) is task


def test_a_run_of_a_folder_knows_what_it_froze(digits, tmp_path):
    from cnnkit.train.run import Run

    straight = made(digits, freeze=[(1, 1)]).fit()
    made(digits, freeze=[(1, 1)], folder=tmp_path).fit(2)
    again = Run.load(tmp_path, data=digits, watch=Quiet())
    assert again.config["freeze"] == [[1, 1]]
    np.testing.assert_allclose(flat(again.fit(3).params), flat(straight.params), atol=1e-6)


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (
            [(1, 5)],
            "freeze has (1, 5), where (epoch, layers) is needed: the epoch from 0, and how many of the",
        ),
        ([(1, 0)], "network's first layers, 1 to 4, learn no more from then on"),
        ([(0.5, 1)], "freeze has (0.5, 1), where (epoch, layers)"),
        ([(2, 1), (1, 3)], "freeze has (1, 3) after (2, 1); epochs and layers must grow"),
    ],
)
def test_what_cannot_be_frozen_is_told(digits, pairs, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        made(digits, freeze=pairs)


def test_only_a_run_freezes(digits):
    from cnnkit.train.run import Run

    with pytest.raises(ValueError, match=re.escape("freeze=((1, 1),) is for a Run; a flock has one program")):
        Flock(made(digits, freeze=[(1, 1)]).task, digits.train, 32)
    with pytest.raises(
        ValueError, match=re.escape("a network of layers one after another, a serial(…), not a dense")
    ):
        Run(dense(10), digits, freeze=[(1, 1)])
