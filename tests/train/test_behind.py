"""Whole epochs sent on their way behind one another, where nobody looks at the model in between."""

import numpy as np
import pytest

from cnnkit.layers import dense, relu, serial
from cnnkit.train import optim
from cnnkit.train.diverge import Diverged
from cnnkit.train.report import Silent
from cnnkit.train.solo import Solo
from tests.train.conftest import Quiet, flat, plain_rows

SETTINGS = {
    "batch": 64,
    "epochs": 4,
    "evaluate_every": 4,
    "dispatch": "epoch",
    "optimizer": optim.sgd(optim.one_cycle(0.05), momentum=0.9),
}


def net():
    return serial(dense(8), relu(), dense(10))


@pytest.fixture
def begun(monkeypatch):
    """The epochs that were sent on their way behind another."""
    epochs, begin = [], Solo.begin

    def seen(self, plan):
        epochs.append(int(plan.epoch))
        begin(self, plan)

    monkeypatch.setattr(Solo, "begin", seen)
    return epochs


class Wishing(Silent):
    """Calls ``at`` after every dispatch, as another thread might."""

    def __init__(self, at):
        self.tick = at


@pytest.fixture
def looked_at(make):
    """The same training, by a run whose watcher may look at the model."""
    return make(net(), watch=Quiet(), **SETTINGS).fit()


def test_epochs_that_nobody_looks_at_follow_at_once_and_are_the_same_training(make, begun, looked_at):
    assert begun == []
    run = make(net(), watch=Silent(), **SETTINGS).fit()
    assert begun == [1, 2, 3]
    np.testing.assert_array_equal(flat(run.params), flat(looked_at.params))
    assert plain_rows(run) == plain_rows(looked_at)
    assert [row["lr"] for row in run.history] == [row["lr"] for row in looked_at.history]


def test_a_training_again_begins_with_none_on_its_way(make, begun):
    run = make(net(), watch=Silent(), **SETTINGS).fit()
    losses = lambda: [row["train_loss"] for row in run.history]
    first = losses()
    run.again(1).fit()
    assert losses() != pytest.approx(first, rel=1e-3)
    run.again(0).fit()
    assert losses() == pytest.approx(first, rel=1e-5)
    assert begun == 3 * [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"evaluate_every": 2}, [1, 3]), ({"folder": True}, []), ({"dispatch": "time"}, [])],
)
def test_an_epoch_waits_where_the_model_may_be_wanted(make, begun, tmp_path, changes, expected):
    if "folder" in changes:
        changes = {"folder": tmp_path / "run"}
    make(net(), watch=Silent(), **SETTINGS | changes).fit()
    assert begun == expected


def test_a_stop_ends_after_the_epoch_on_its_way_and_nothing_is_lost(make, begun, looked_at):
    run = make(net(), watch=Wishing(lambda run: run.stop() if run.epoch == 0 else None), **SETTINGS).fit()
    assert (run.epoch, begun, run.phase) == (2, [1], "stopped")
    run.watch = Silent()
    run.fit()
    np.testing.assert_array_equal(flat(run.params), flat(looked_at.params))
    assert plain_rows(run) == plain_rows(looked_at)


@pytest.mark.parametrize("where", ["tick", "row"])
def test_after_an_error_beside_it_the_epoch_on_its_way_is_part_of_the_training(make, looked_at, where):
    class Failing(Silent):
        pass

    def fail(self, run, *row):
        if run.epochs_done == 2:
            raise ArithmeticError("my own mistake")

    setattr(Failing, where, fail)
    run = make(net(), watch=Failing(), **SETTINGS)
    with pytest.raises(ArithmeticError):
        run.fit()
    assert (run.epoch, len(run.history), run.engine.begun) == (3, 3, None)
    run.watch = Silent()
    run.fit()
    np.testing.assert_array_equal(flat(run.params), flat(looked_at.params))
    assert plain_rows(run) == plain_rows(looked_at)


def test_a_pause_holds_after_the_epoch_on_its_way(make, begun):
    held = []

    class Pausing(Silent):
        def tick(self, run):
            if run.phase == "paused":
                held.append((run.epoch, run.engine.begun))
                run.resume()
            elif run.epochs_done == 1:
                run.pause()

    make(net(), watch=Pausing(), **SETTINGS).fit()
    assert held == [(2, None)]
    assert begun == [1, 3]


def test_another_rate_holds_from_the_next_epoch_that_is_not_on_its_way(make):
    def slower(run):
        run.control.lr_scale = 0.5

    run = make(net(), watch=Wishing(slower), **SETTINGS).fit()
    full = make(net(), watch=Silent(), **SETTINGS).fit()
    factors = [a["lr"] / b["lr"] for a, b in zip(run.history[:3], full.history, strict=False)]
    assert factors == pytest.approx([1, 1, 0.5])


def test_an_epoch_behind_one_that_diverged_changes_nothing(make, begun):
    settings = SETTINGS | {"optimizer": optim.sgd(optim.stages((0.01, 1), (1e30, 9)))}
    ended, weights = [], []
    for watch in (Quiet(), Silent()):
        run = make(net(), watch=watch, **settings)
        with pytest.raises(Diverged) as error:
            run.fit()
        ended.append(str(error.value))
        weights.append(flat(run.params))
    assert "epoch 2" in ended[0]
    assert ended[0] == ended[1]
    assert begun == [1, 2]
    np.testing.assert_array_equal(*weights)
