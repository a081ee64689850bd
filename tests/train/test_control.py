"""Steering a run: interrupts, stops, pauses, other rates, copies; from the main thread and the background."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from cnnkit.augment import chain, flip, noise
from cnnkit.train import loop, optim
from cnnkit.train.control import Control, Turns
from cnnkit.train.report import Bar, Lines, Silent, epoch_line
from cnnkit.train.run import Run
from tests.train.conftest import Quiet, flat, plain_rows, small_net

FULL = {
    "augment": chain(flip(), noise(0.05)),
    "optimizer": optim.sgd(optim.stages((0.1, 0.9, 1), (0.05, 0.5, 1)), momentum=0.9),
}


@pytest.fixture
def step_by_step(monkeypatch):
    """One mini-batch a dispatch, so that interrupts land everywhere."""
    monkeypatch.setattr(loop, "TICK", 1e-4)


def at_tick(number, act):
    """A watcher that acts at one of the ticks."""
    seen = []

    def at(run):
        seen.append(1)
        if len(seen) == number:
            act(run)

    return Quiet(at)


def test_ctrl_c_ends_the_dispatch_and_fit_goes_on_bit_for_bit(make, step_by_step):
    whole = make(small_net(), **FULL).fit()
    handler = signal.getsignal(signal.SIGINT)
    run = make(small_net(), **FULL, watch=at_tick(3, lambda run: os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt, match=r"stopped at epoch 0\.57; fit\(\) goes on from there"):
        run.fit()
    assert signal.getsignal(signal.SIGINT) is handler
    assert (run.phase, run.watch.calls[-1], run.history) == ("stopped", "stopped", [])
    run.fit()
    assert plain_rows(run) == plain_rows(whole)
    np.testing.assert_array_equal(flat(run.model), flat(whole.model))


def test_one_trains_at_a_time(make, step_by_step):
    errors = []

    def second(run):
        try:
            run.fit()
        except RuntimeError as error:
            errors.append(str(error))

    def meanwhile(run):
        thread = threading.Thread(target=second, args=(run,))
        thread.start()
        thread.join()

    run = make(small_net(), watch=at_tick(2, meanwhile)).fit()
    assert errors == ["the run already trains in another thread; wait() for it, or stop() it first"]
    assert [row["epoch"] for row in run.history] == list(range(1, run.epochs + 1))
    assert run.fit(run.epochs + 1).history[-1]["epoch"] == run.epochs


def test_a_run_that_stayed_behind_does_not_take_the_folder_back(make, tmp_path):
    first = make(small_net(), folder=tmp_path, epochs=1).fit()
    second = make(small_net(), folder=tmp_path, epochs=2)
    late = make(small_net(), folder=tmp_path, epochs=3)
    second.fit()
    for other in (first, late):
        with pytest.raises(
            RuntimeError, match=r"another run has trained in .* since this one last stood there"
        ):
            other.fit(4)
    assert make(small_net(), folder=tmp_path, epochs=3).fit().epochs_done == 3
    assert [row["epoch"] for row in Run.load(tmp_path, data=first.data).history] == [1, 2, 3]
    with pytest.raises(RuntimeError, match="another run has trained"):
        second.fit(3)


def test_stopping_anywhere_and_going_on_changes_nothing(make, step_by_step, tmp_path):
    whole = make(small_net(), **FULL).fit()
    for number in (1, 6, 7, 8, 9):
        run = make(
            small_net(), **FULL, folder=tmp_path / str(number), watch=at_tick(number, lambda run: run.stop())
        )
        run.fit()
        assert run.phase == "stopped"
        again = make(small_net(), **FULL, folder=tmp_path / str(number))
        assert again.epochs_done == run.epochs_done < 2
        again.fit()
        assert plain_rows(again) == plain_rows(whole)
        np.testing.assert_array_equal(flat(again.model), flat(whole.model))


def test_a_second_ctrl_c_ends_at_once_and_fit_goes_on_from_the_checkpoint(
    make, step_by_step, tmp_path, monkeypatch
):
    whole = make().fit()
    run = make(folder=tmp_path, checkpoint_every=0)
    advance, count = run.engine.advance, []

    def cut_off(*args):
        count.append(1)
        if len(count) == 4:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return advance(*args)

    monkeypatch.setattr(run.engine, "advance", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert (run.phase, run.position) == ("failed", 3)
    run.fit()
    assert plain_rows(run) == plain_rows(whole)
    np.testing.assert_array_equal(flat(run.model), flat(whole.model))


def test_an_interrupted_evaluation_is_made_up_for(make, monkeypatch):
    run, evaluate = make(), Run.evaluate

    def cut_off(self, part):
        monkeypatch.setattr(Run, "evaluate", evaluate)
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "evaluate", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert run.history == []
    run.fit()
    assert plain_rows(run) == plain_rows(make().fit())


def test_handlers_come_back_also_ones_that_ignore_and_none(monkeypatch):
    for handler in (signal.SIG_IGN, signal.default_int_handler):
        before = signal.signal(signal.SIGINT, handler)
        try:
            control = Control()
            with control.interrupts():
                assert signal.getsignal(signal.SIGINT) not in (handler, before)
                os.kill(os.getpid(), signal.SIGINT)
                assert control.interrupted
                assert control.stopping
            assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, before)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with Control().interrupts():
        pass


def test_outside_the_main_thread_signals_are_left_alone():
    handler, found = signal.getsignal(signal.SIGINT), []

    def work():
        with Control().interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [handler]


def test_in_the_background_start_pause_resume_stop_wait(make, step_by_step):
    whole = make(epochs=4).fit()
    run = make(epochs=4, watch=at_tick(2, lambda run: run.pause()))
    assert run.start() is run
    assert run.training
    until(lambda: run.phase == "paused")
    stands, position = flat(run.params), run.position
    with pytest.raises(TimeoutError, match=r"the run still trains after 0\.05 s; wait again, or stop\(\) it"):
        run.wait(0.05)
    np.testing.assert_array_equal(flat(run.params), stands)
    assert (run.position, run.training) == (position, True)
    for act in (run.fit, run.start):
        with pytest.raises(
            RuntimeError, match=r"already trains in the background; wait\(\) for it, or stop\(\) it"
        ):
            act()
    with pytest.raises(
        RuntimeError, match=r"the run trains now; use run\.control\.save\(\), or stop\(\) it first"
    ):
        run.save("nowhere")
    run.resume()
    until(lambda: run.epoch >= 1)
    run.stop()
    assert run.wait() is run
    assert (run.phase, run.training) == ("stopped", False)
    run.start().wait()
    assert run.phase == "done"
    assert plain_rows(run) == plain_rows(whole)


def test_questions_while_it_trains_are_answered_from_whole_models(make, step_by_step):
    run = make(epochs=30, judge=())
    run.start()
    answers = 0
    while run.training and answers < 20:
        judged = run.evaluate("test")
        assert judged["examples"] == 101
        assert np.isfinite(flat(run.params)).all()
        assert run.predict("test").shape == (101, 10)
        answers += 1
    run.stop()
    run.wait()
    assert answers == 20


def test_a_stop_ends_a_pause(make, step_by_step):
    run = make(watch=at_tick(2, lambda run: run.pause())).start()
    until(lambda: run.phase == "paused")
    run.stop()
    assert run.wait(30).phase == "stopped"


def test_what_ended_a_training_in_the_background_is_raised_by_wait(make):
    def break_down(run):
        raise ArithmeticError("for this test")

    run = make(watch=Quiet(break_down)).start()
    with pytest.raises(ArithmeticError, match="for this test"):
        run.wait()
    assert run.phase == "failed"
    run.watch.at = lambda run: None
    assert run.wait() is run
    run.fit()
    assert plain_rows(run) == plain_rows(make().fit())


def test_another_rate_holds_from_the_next_dispatch_on_and_is_kept(make, step_by_step, tmp_path):
    run = make(folder=tmp_path, watch=at_tick(4, lambda run: setattr(run.control, "lr_scale", 0.5)))
    run.fit()
    assert [row["lr"] for row in run.history] == pytest.approx([0.005, 0.005])
    other = make(folder=tmp_path)
    assert other.control.lr_scale == 0.5
    other.control.lr_scale = 0.25
    assert other.fit(3).history[-1]["lr"] == pytest.approx(0.0025)
    still = make(
        watch=at_tick(3, lambda run: setattr(run.control, "lr_scale", 0.0)), optimizer=optim.sgd(momentum=0)
    )
    seen = []
    still.watch.at = lambda run, at=still.watch.at: (at(run), seen.append(flat(run.params)))
    still.fit(1)
    assert np.abs(seen[2] - seen[1]).max() > 0
    np.testing.assert_array_equal(seen[2], seen[-1])


def test_a_checkpoint_on_demand(make, step_by_step, tmp_path):
    def look(run):
        if run.position == 4 and not run.epoch:
            run.control.save()
        seen.append((run.epochs_done, (tmp_path / "checkpoint.safetensors").exists()))

    seen = []
    make(folder=tmp_path, watch=Quiet(look), epochs=1).fit()
    assert [there for done, there in seen if done < 5.5 / 7] == [False] * 5
    assert seen[5] == (pytest.approx(6 / 7), True)


def test_a_copy_is_a_run_of_its_own(make, tmp_path):
    run = make(folder=tmp_path / "a", epochs=1).fit()
    assert run.save(tmp_path / "b") == tmp_path / "b"
    run.fit(2)
    copy = make(folder=tmp_path / "b")
    assert copy.epochs_done == 1
    assert [row["epoch"] for row in copy.history] == [1]
    assert plain_rows(copy.fit(2)) == plain_rows(run)
    np.testing.assert_array_equal(flat(copy.model), flat(run.model))
    run.fit(3)
    run.save(tmp_path / "b")
    assert len(make(folder=tmp_path / "b", epochs=3).history) == 3
    memory = make(epochs=1).fit()
    memory.save(tmp_path / "c")
    np.testing.assert_array_equal(flat(make(folder=tmp_path / "c", epochs=1).params), flat(memory.params))
    with pytest.raises(ValueError, match=r"this run has no folder; give one: run\.save\('runs/name'\)"):
        memory.save()
    with pytest.raises(ValueError, match="holds another run: seed was 0, is 1"):
        make(seed=1).save(tmp_path / "c")


def test_save_writes_where_the_run_stands(make, tmp_path):
    run = make(folder=tmp_path, epochs=1)
    assert run.save() == tmp_path
    assert make(folder=tmp_path, epochs=1).epochs_done == 0
    run.fit()
    (tmp_path / "checkpoint.safetensors").unlink()
    run.save()
    np.testing.assert_array_equal(flat(make(folder=tmp_path, epochs=1).params), flat(run.params))


def test_turns_are_taken_in_the_order_of_asking():
    turns, order, begun = Turns(), [], threading.Event()

    def train():
        for i in range(3):
            with turns:
                begun.set()
                time.sleep(0.05)
                order.append(i)

    thread = threading.Thread(target=train)
    thread.start()
    begun.wait()
    with turns:
        order.append("asked")
    thread.join()
    assert order.index("asked") <= 1


class AlwaysDrawn(Bar):
    """A bar that is drawn at every tick, however fast they come."""

    def begin(self, run):
        super().begin(run)
        self._bar.mininterval, self._bar.miniters, self._bar.dynamic_miniters = 0, 0, False


def test_lines_and_bar_say_how_it_goes(make, tmp_path, capsys):
    import io

    run = make(watch=Lines(), folder=tmp_path, epochs=1).fit()
    row = run.history[0]
    line = epoch_line(row, 1)
    assert capsys.readouterr().out == f"{line}\n"
    assert line.startswith(
        f"epoch 1/1, train loss {row['train_loss']:.4f}, accuracy {100 * row['train_accuracy']:.2f} %, test "
    )
    make(watch=Lines(), folder=tmp_path, epochs=2).fit()
    assert capsys.readouterr().out.startswith("goes on from epoch 1.00 of 2\nepoch 2/2")
    text = io.StringIO()
    make(watch=Bar(text), epochs=1).fit()
    assert "done 100%" in text.getvalue()
    assert "1.0/1 epochs" in text.getvalue()
    for evaluated in (1, 3):
        text = io.StringIO()
        make(watch=AlwaysDrawn(text), epochs=3, evaluate_every=evaluated).fit()
        assert "evaluate" in text.getvalue()
        assert text.getvalue().index("\n") == len(text.getvalue()) - 1, "one line, ended by its end"
    make(watch=Silent(), epochs=1).fit()
    assert capsys.readouterr().out == ""


def test_an_error_at_the_start_is_not_hidden_by_the_bar(make, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written"):
        make(watch=Bar(), folder=tmp_path / "file" / "run").fit()


def test_a_program_that_ends_leaves_a_checkpoint_of_its_training_in_the_background(tmp_path):
    import subprocess
    import sys

    code = f"""
from cnnkit.data import load
from cnnkit.layers import dense, serial
from cnnkit.train.report import Silent
from cnnkit.train.run import Run
class Told(Silent):
    def tick(self, run):
        if run.epoch == 1: print("on its way", flush=True)
run = Run(serial(dense(10)), load("digits").take(train=203, test=101), batch=32, epochs=10**6,
          folder={str(tmp_path)!r}, watch=Told(), checkpoint_every=1000).start()
while run.epoch < 2: pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "on its way" in done.stdout
    from cnnkit.record import checkpoint

    assert checkpoint.read_facts(tmp_path)["epoch"] >= 2


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)
