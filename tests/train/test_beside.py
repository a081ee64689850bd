"""Programs of later epochs and of evaluation, compiled while the first epoch trains, as on a GPU."""

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from cnnkit.augment import crop, stages
from cnnkit.layers import dense, relu, serial, whiten
from cnnkit.train import beside
from cnnkit.train.clock import Clocks, Compiled
from cnnkit.train.solo import Solo
from tests.train.conftest import Quiet, flat, plain_rows

# Four programs: images of 6, of 6 with the bias frozen, of 8, and evaluation.
STAGES = {"augment": stages((crop(6), 2), crop(8)), "freeze": [(1, 1)], "epochs": 4}


def net():
    from cnnkit.layers import global_pool

    return serial(whiten(2), relu(), global_pool(), dense(10))


@pytest.fixture
def compiled(monkeypatch):
    """Names of the threads that compile; the last of the programs sets the event."""
    threads, done, compile_ = [], threading.Event(), Compiled._compile

    def seen(self, signature, args):
        compile_(self, signature, args)
        threads.append(threading.current_thread().name)
        if len(threads) == 4:
            done.set()

    monkeypatch.setattr(Compiled, "_compile", seen)
    monkeypatch.setattr(beside, "_pays", lambda: True)
    return threads, done


@pytest.mark.parametrize("dispatch", ["time", "epoch"])
def test_later_programs_are_compiled_once_by_other_threads(make, compiled, monkeypatch, dispatch):
    threads, done = compiled
    begun, send = [], Solo._send
    monkeypatch.setattr(Solo, "_send", lambda self, *args: (begun.append(self.later), send(self, *args))[1])
    wait = Quiet(lambda run: done.wait(60) if run.epoch == 0 else None)
    run = make(net(), dispatch=dispatch, watch=wait, **STAGES).fit()
    assert [name.startswith("cnnkit compiling_") for name in sorted(threads)] == [False, True, True, True]
    assert run.engine.compilations() == 3
    assert begun[:2] == [False, True]  # the first steps are on their way before, and do not wait for anything
    asked = []
    run.engine.prepare = lambda *args: asked.append(args)
    run.again(1).fit()
    assert asked == []  # nothing is asked for again, as it would take time from a training
    assert run.engine.compilations() == 3


def test_trainings_are_the_same(make, compiled):
    beside_it = make(net(), **STAGES).fit()
    compiled[1].set()
    usual = make(net(), **STAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "_pays", lambda: False)
        usual.fit()
    np.testing.assert_array_equal(flat(beside_it.params), flat(usual.params))
    assert plain_rows(beside_it) == plain_rows(usual)


@pytest.mark.parametrize(("times", "room"), [(1.9, False), (2.1, True)])
def test_nothing_is_compiled_beside_a_training_that_takes_most_of_the_memory(make, times, room):
    engine = make(net(), **STAGES).fit().engine
    images = 203 * 8 * 8 * 1
    assert engine.needs() > images + sum(leaf.nbytes for leaf in jax.tree.leaves(engine.model().params))

    class Small:
        """A device with so many times the memory that the training takes."""

        def memory_stats(self):
            return {"bytes_limit": times * engine.needs()}

    engine.source = SimpleNamespace(labels=SimpleNamespace(devices=lambda: {Small()}))
    assert beside._room(engine) is room


def test_what_fails_beside_is_told_where_it_is_needed(make, compiled, monkeypatch):
    prepare = Solo.prepare

    def failing(self, *args):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("no room")
        prepare(self, *args)

    monkeypatch.setattr(Solo, "prepare", failing)
    assert len(make(net(), **STAGES).fit().history) == 4


def test_who_needs_a_program_waits_for_the_thread_that_compiles_it(monkeypatch):
    entered, free = threading.Event(), threading.Event()
    compile_, fail = Compiled._compile, [True, False]

    def slow(self, signature, args):
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            free.wait(60)
            if fail.pop(0):
                raise RuntimeError("no room")
        compile_(self, signature, args)

    monkeypatch.setattr(Compiled, "_compile", slow)
    x = np.float32([1, 2])
    # The first other thread fails: then the program is compiled here, else it is that of the other thread.
    for compilations in (1, 1):
        entered.clear()
        free.clear()
        made = Compiled(lambda x: 2 * x, Clocks())
        raised = []

        def prepare(made=made, raised=raised):
            try:
                made.prepare(x)
            except RuntimeError as error:
                raised.append(str(error))

        other = threading.Thread(target=prepare)
        other.start()
        assert entered.wait(60)
        threading.Timer(0.05, free.set).start()
        np.testing.assert_array_equal(made(x), [2, 4])
        other.join()
        assert made.compilations == compilations
    assert fail == []
