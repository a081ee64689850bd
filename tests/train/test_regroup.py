"""Rounds that are interrupted: bit for bit on as many workers, and with nothing lost on others."""

import jax
import numpy as np
import pytest

from cnnkit.data import batches, shares, starts
from cnnkit.layers import batch_norm, dense, serial
from cnnkit.parallel.fetch import warm_start
from cnnkit.train import loop, optim
from cnnkit.train import run as run_module
from cnnkit.train.regroup import regroup
from tests.train.conftest import Quiet, flat, plain_rows, small_net
from tests.train.test_single import one_hot_images


def stop_at(*rounds):
    return Quiet(lambda run: run.engine.round in rounds and run.phase == "train" and run.stop())


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param({"fetch": 2}, marks=[pytest.mark.timed, pytest.mark.long]),
        pytest.param(
            {"mode": "accumulate", "delay": 1, "fetch": 2}, marks=[pytest.mark.timed, pytest.mark.long]
        ),
        {"fetch": warm_start(1, 4, epochs=2), "delay": 1, "momentum": "average"},
        {"delay": 1, "payload": "int8", "fetch": 2},
        {"outer": "nesterov", "fetch": 2},
    ],
    ids=lambda rules: " ".join(map(str, rules)),
)
def test_rounds_that_are_stopped_go_on_bit_for_bit(make, tmp_path, rules):
    net = small_net() if rules == {"fetch": 2} else serial(dense(8), batch_norm(), dense(10))
    settings = {"net": net, "workers": 3, "batch": 8, "epochs": 3, **rules}
    whole = make(**settings).fit()
    ends = (1, 3, 6, 9)  # on either side of rounds that look at the clock
    for _ in ends:
        run = make(**settings, folder=tmp_path, watch=stop_at(*ends)).fit()
    run = make(**settings, folder=tmp_path).fit()
    assert run.phase == "done"
    assert plain_rows(run) == plain_rows(whole)
    np.testing.assert_array_equal(flat(run.engine.snapshot()), flat(whole.engine.snapshot()))
    for now in (run, make(**settings, folder=tmp_path).fit()):
        np.testing.assert_array_equal(flat(now.params), flat(whole.params))
    steps = lambda run: sum(np.array(row["steps"]) for row in run.record.rounds())
    np.testing.assert_array_equal(steps(run), steps(whole))


@pytest.mark.parametrize("mode", ["accumulate", "local"])
@pytest.mark.parametrize("delay", [0, 1])
def test_other_numbers_of_workers_lose_no_example_and_repeat_none(make, tmp_path, monkeypatch, mode, delay):
    """A constant gradient of 1 for each example's own weight, so that each must fall as its round says."""
    monkeypatch.setattr(loop, "TICK", 1e-4)
    monkeypatch.setitem(run_module.LOSSES, "first", lambda outputs, labels: outputs[:, 0])
    data, taken = one_hot_images(), []

    def look(run):
        if run.phase == "train":
            taken.append((run.engine.workers, run.position))
            if len(taken) in (2, 4, 6):
                run.stop()

    settings = {
        "net": serial(dense(2, bias=False)), "data": data, "batch": 3, "epochs": 2, "normalize": False, "loss": "first",
        "optimizer": optim.sgd(0.5, momentum=0), "mode": mode, "delay": delay, "fetch": 2, "judge": (), "folder": tmp_path,
    }  # fmt: skip
    before = np.float64(make(**settings).params[0]["w"][:, 0])
    for workers in (1, 2, 4, 3):
        run = make(**settings, workers=workers, watch=Quiet(look)).fit()
    assert run.phase == "done"
    assert sorted({workers for workers, _ in taken}) == [1, 2, 3, 4]
    fell, first, epoch = np.zeros(40), 0, 0
    for workers, end in taken:
        index, weight = batches(40, 3, 0, epoch)
        share = shares([2] * workers, len(index) - first)
        if mode == "local" and workers == 1 and not delay:
            share = np.array([end - first])  # plain steps
        assert first + share.sum() == end
        n = [weight[s : s + k].sum() for s, k in zip(starts(share, first), share, strict=True)]
        for s, k, mine in zip(starts(share, first), share, n, strict=True):
            for i, w in zip(index[s : s + k], weight[s : s + k], strict=True):
                rate = 0.5 / sum(n) if mode == "accumulate" else 0.5 / w.sum() * mine / sum(n)
                np.add.at(fell, i, w * rate)
        first, epoch = (end, epoch) if end < len(index) else (0, epoch + 1)
    assert epoch == 2
    np.testing.assert_allclose(before - np.float64(run.params[0]["w"][:, 0]), fell, rtol=1e-4)
    assert [row["examples"] for row in run.history] == [40, 80]
    assert run.history[0]["epoch"] == 1


def test_workers_optimizers_are_averaged_and_books_and_residuals_go_to_one(make):
    run = make(
        serial(dense(8), batch_norm(), dense(10)),
        workers=3,
        batch=8,
        payload="bfloat16",
        fetch=2,
        optimizer=optim.adamw(0.01),
        watch=stop_at(3),
    )
    run.fit()
    was = run.engine.snapshot()
    for workers in (1, 2, 4):
        now = regroup(run.task, run.rules, was, workers, np.float32(0.01), np.float32(0.9))
        np.testing.assert_array_equal(flat(now.common), flat(was.common))
        own = now.own
        assert own.sums.examples.tolist() == [was.own.sums.examples.sum()] + [0] * (workers - 1)
        for before, after in zip(jax.tree.leaves(was.own.opt), jax.tree.leaves(own.opt), strict=True):
            assert after.dtype == before.dtype
            mean = before.mean(0).round() if before.dtype.kind == "i" else before.mean(0)
            for row in after:
                np.testing.assert_allclose(row, mean, rtol=1e-6)
        for before, after in zip(jax.tree.leaves(was.own.error), jax.tree.leaves(own.error), strict=True):
            np.testing.assert_allclose(after.sum(0), before.sum(0), rtol=1e-6)
            assert not after[1:].any()
        assert own.bad.tolist() == [-1] * workers
    assert regroup(run.task, run.rules, was, 3, 0, 0) is was


def test_an_exchange_of_nothing_moves_nothing_and_keeps_what_rounding_took(make, tmp_path):
    """Other workers begin with nothing on its way: their first exchange is no outer step, and carries no residuals."""
    settings = {"batch": 16, "delay": 1, "outer": "nesterov", "payload": "int8", "exchange": "redundant"}
    settings |= {"folder": tmp_path, "judge": ()}
    make(workers=3, **settings).fit()
    run = make(workers=2, **settings, epochs=3)
    before = run.engine.snapshot()
    np.testing.assert_array_equal(flat(run.engine.model().params), flat(before.common.model.params))
    run.engine.begin_epoch(loop.lay_out(run, 2, lr_scale=0.0), fresh=True)
    run.engine.advance(0, 1e-9)
    after = run.engine.snapshot()
    np.testing.assert_array_equal(flat(after.common), flat(before.common))
    assert np.abs(flat(before.own.error)).sum() > 0.1
    np.testing.assert_array_equal(flat(after.own.error), flat(before.own.error))
