"""Losses that are no numbers: training stops, says where, and keeps the last good checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.layers import Layer, branch, conv, dense, relu, serial
from cnnkit.train import diverge, loop, optim
from cnnkit.train.diverge import Diverged
from cnnkit.train.step import Source, mini_batch
from tests.train.conftest import Quiet, flat

BLOWS_UP = optim.sgd(optim.stages((0.01, 1), (1e12, 1)), momentum=0.0)


def nan_after(limit: float) -> Layer:
    """A layer that gives NaN where its input is beyond a limit."""
    return Layer(
        init=lambda key, shape: ((), (), shape),
        apply=lambda params, state, x, *, key=None, train=False: (
            jnp.where(jnp.abs(x) > limit, jnp.nan, x),
            state,
        ),
        kind="fragile",
        config={"limit": limit},
    )


def test_nan_stops_with_the_last_good_checkpoint_kept(make, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "TICK", 1e-4)
    net = serial(dense(16), nan_after(1e6), dense(10))
    run = make(net, folder=tmp_path, optimizer=BLOWS_UP, checkpoint_every=0)
    with pytest.raises(
        Diverged,
        match=r"the loss is not a finite number since epoch 2, mini-batch 2, first in the output of layer 1 fragile.*\. "
        rf"The run is back at its checkpoint of epoch 1\.14 in {tmp_path}\. Lower the learning rate, warm it up, or look at the data",
    ):
        run.fit()
    event = run.record.rows[-1]
    assert (event["kind"], event["event"], event["epoch"], event["mini_batch"], event["worker"]) == (
        "event",
        "diverged",
        1,
        1,
        0,
    )
    assert "fragile" in event["place"]
    assert (run.phase, run.epoch, run.position) == ("failed", 1, 1)
    assert np.isfinite(flat(run.params)).all()
    np.testing.assert_array_equal(
        flat(make(net, folder=tmp_path, optimizer=BLOWS_UP).params), flat(run.params)
    )


def test_after_a_lower_rate_it_goes_on(make, tmp_path):
    net = serial(dense(16), nan_after(1e6), dense(10))
    run = make(net, folder=tmp_path, optimizer=BLOWS_UP, epochs=1).fit()
    with pytest.raises(Diverged, match=r"checkpoint of epoch 1\.00"):
        run.fit(2)
    run.control.lr_scale = 1e-14
    assert run.fit().phase == "done"
    assert [row["epoch"] for row in run.history] == [1, 2]
    assert run.history[-1]["train_loss"] <= run.history[0]["train_loss"]


def test_without_a_folder_the_weights_before_are_left(make, monkeypatch):
    monkeypatch.setattr(loop, "TICK", 1e9)
    run = make(serial(dense(10)), loss="squared_error", optimizer=optim.sgd(1e30, momentum=0.5))
    kept = r"No checkpoint was kept, for want of a folder=; run\.model has the weights from before\. Lower"
    with pytest.raises(Diverged, match=kept):
        run.fit()
    assert np.isfinite(flat(run.params)).all()
    left, where = flat(run.params), (run.epoch, run.position)
    run.control.lr_scale = 1e-30
    with pytest.raises(RuntimeError, match="diverged, and no checkpoint was kept to go on from"):
        run.fit()
    assert (run.epoch, run.position, run.phase) == (*where, "failed")
    np.testing.assert_array_equal(flat(run.params), left)


def test_weights_that_break_in_the_last_step_do_not_replace_a_good_checkpoint(make, tmp_path):
    """The loss is finite, its gradient's step is not: no later loss would tell."""
    settings = {
        "net": serial(dense(10)),
        "folder": tmp_path,
        "loss": "squared_error",
        "batch": 203,
        "judge": (),
    }
    run = make(
        **settings, optimizer=optim.sgd(optim.stages((0.01, 1), (3e38, 1)), momentum=0.0), epochs=1
    ).fit()
    good = flat(run.params).copy()
    with pytest.raises(
        Diverged,
        match=r"not all weights are finite numbers at epoch 2\.00, first in the weights of layer 0 dense 10, its .*\. The run is back",
    ):
        run.fit(2)
    np.testing.assert_array_equal(flat(run.params), good)
    assert run.epoch == 1


def test_the_place_is_found(make):
    run = make()
    plan = loop.lay_out(run, 0)
    train = run.data.train

    def place(net, spoil=lambda params: params, **changes):
        other = make(net, **changes)
        model = other.model
        return diverge.place(other.task, model._replace(params=spoil(model.params)), train, plan, 0)

    assert place(serial(dense(10))) == ""
    two = serial(dense(8), branch(serial(relu(), dense(4)), nan_after(0.0)), dense(10))
    found = place(two)
    assert found.startswith("the output of layer 1 branch")
    assert found.endswith("/ 1 fragile limit=0.0")
    spoil = lambda params: (params[0], {"w": params[1]["w"].at[0, 0].set(jnp.inf), "b": params[1]["b"]})
    assert place(serial(dense(8), dense(10)), spoil) == "the weights of layer 1 dense 10, its w"
    big = lambda params: jax.tree.map(lambda w: jnp.full_like(w, 1e38), params)
    assert place(serial(conv(2, 3), dense(10)), big).startswith("the output of layer ")
    large = lambda params: ({"w": jnp.full_like(params[0]["w"], 1e25), "b": params[0]["b"]},)
    assert (
        place(serial(dense(10)), large, loss="squared_error") == "the loss itself, for logits that are finite"
    )


def test_what_the_search_sees_is_what_training_saw(make):
    from tests.train.conftest import small_net

    run = make(small_net())
    plan, model = loop.lay_out(run, 0), run.model
    at = mini_batch(Source(*run.data.train), plan, 3)
    _, net_key = jax.random.split(at.key)
    x = run.task.augmented(at, net_key)
    told = []
    ours = diverge._forward(run.net, model.params, model.state, x, net_key, "", told.append)
    theirs, _ = run.task.logits(model.params, model.state, x, net_key, train=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert told == []


def test_a_bad_loss_changes_nothing_more(make, monkeypatch):
    """All later steps of the dispatch leave parameters and statistics as they are."""
    monkeypatch.setattr(loop, "TICK", 1e9)
    run = make(
        serial(dense(16), nan_after(1e6), dense(10)),
        optimizer=optim.sgd(optim.stages((1e12, 9)), momentum=0.9),
    )
    run.engine._rate = 1e9  # the whole epoch at once
    with pytest.raises(Diverged, match="mini-batch 2, first in the output of layer 1 fragile"):
        run.fit()
    assert run.watch.calls == ["begin", "failed"]
    assert np.isfinite(flat(run.params)).all()
    assert isinstance(run.watch, Quiet)


@pytest.mark.parametrize("rules", [{"mode": "accumulate"}, {"mode": "local", "fetch": 2}])
def test_of_many_workers_the_one_is_named_and_its_numbers_do_not_spread(make, rules):
    from tests.train import member

    run = make(member.net(nan_at=2), batch=16, workers=2, **rules)
    with pytest.raises(Diverged, match=r"since epoch 1, mini-batch \d+, worker 1"):
        run.fit()
    assert np.isfinite(flat(run.params)).all()
    assert np.isfinite(flat(run.state)).all()
