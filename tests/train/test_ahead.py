"""What is made beside something else: the next epoch's layout, and the first program while weights are drawn."""

import threading

import numpy as np
import pytest

from cnnkit.train import loop
from cnnkit.train.clock import Compiled
from cnnkit.train.measure import Measured
from cnnkit.train.scheduled import Scheduled
from cnnkit.train.solo import Solo
from cnnkit.train.team import Team
from tests.train.conftest import flat, small_net


def test_the_next_epoch_is_on_the_workers_before_it_begins(make, monkeypatch):
    begun, begin = [], Team.begin_epoch

    def seen(self, plan, fresh):
        begun.append(self._ready is not None and self._ready[0] is plan)
        begin(self, plan, fresh)

    monkeypatch.setattr(Team, "begin_epoch", seen)
    make(batch=32, epochs=3, workers=2, mode="accumulate", fetch=1).fit()
    assert begun == [False, True, True]


def test_what_is_laid_out_beside_the_last_rounds_is_no_part_of_them(make, monkeypatch):
    call, dispatch, told = Scheduled.call, Measured.dispatch, []

    def instantly(self, function, *args, meanwhile=None):
        made = call(self, function, *args, meanwhile=meanwhile)
        self.seconds = 0.0  # as if all the time had gone into what was done meanwhile
        return made

    def noted(self, counts, seconds, delay, alone=None):
        told.append((run.position, alone is None, seconds))
        dispatch(self, counts, seconds, delay, alone)

    monkeypatch.setattr(Scheduled, "call", instantly)
    monkeypatch.setattr(Measured, "dispatch", noted)
    run = make(batch=32, epochs=8, workers=2, mode="accumulate", fetch=1)
    advance, spent = Team.advance, []

    def timed(self, *args):
        before = run.clocks.seconds["train"]
        done = advance(self, *args)
        spent.append(
            (done == self.agenda.batches and self.meanwhile is not None, run.clocks.seconds["train"] - before)
        )
        return done

    monkeypatch.setattr(Team, "advance", timed)
    run.fit()
    shorter = [seconds < took for (_, _, seconds), (_, took) in zip(told, spent, strict=True)]
    assert shorter == [last and many for (last, _), (_, many, _) in zip(spent, told, strict=True)]
    assert any(shorter)


def test_a_layout_that_fails_beside_the_rounds_fails_where_it_is_needed(make, monkeypatch):
    lay_out = loop.lay_out

    def failing(run, epoch, scale=1.0, ahead=None):
        if epoch == 1:
            raise OSError("no room")
        return lay_out(run, epoch, scale, ahead)

    monkeypatch.setattr(loop, "lay_out", failing)
    run = make(batch=32, epochs=3, workers=2, mode="accumulate", fetch=1)
    with pytest.raises(OSError, match="no room"):
        run.fit()
    assert len(run.history) == 1
    monkeypatch.setattr(loop, "lay_out", lay_out)
    assert len(run.fit().history) == 3


@pytest.mark.parametrize("dispatch", ["time", "epoch"])
def test_the_first_program_is_compiled_beside_the_drawing_of_the_weights(make, monkeypatch, dispatch):
    threads, compile_ = [], Compiled._compile

    def seen(self, signature, args):
        threads.append(threading.current_thread().name)
        compile_(self, signature, args)

    monkeypatch.setattr(Compiled, "_compile", seen)
    assert make(small_net(), dispatch=dispatch).engine.compilations() == 0
    assert threads == []  # as it was not about to train
    run = make(small_net(), dispatch=dispatch, evaluate_every=2).fit()
    assert threads == ["cnnkit compiling", "MainThread"]  # what trains, and what evaluates
    assert run.engine.compilations() == 1


def test_a_program_that_cannot_be_compiled_beside_is_compiled_where_it_is_needed(make, monkeypatch):
    def failing(self, *args):
        raise RuntimeError("no room")

    usual = make(small_net()).fit()
    monkeypatch.setattr(Solo, "prepare", failing)
    run = make(small_net()).fit()
    np.testing.assert_array_equal(flat(run.params), flat(usual.params))
    assert run.engine.compilations() == 1
