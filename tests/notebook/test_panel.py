"""The panel: one output that moves, controls that act, and a final state that needs nothing to be read."""

import base64
import io
import re
import sys
import threading
import time
from types import SimpleNamespace

import matplotlib._pylab_helpers as pylab
import pytest
from ipywidgets.widgets import widget
from PIL import Image

import cnnkit as ck
from cnnkit.notebook import watch
from cnnkit.notebook.controls import Controls
from cnnkit.notebook.panel import Panel
from cnnkit.train.control import Control
from cnnkit.train.report import Lines
from tests.notebook.conftest import stub

DATA = ck.load("digits").take(train=200, test=100)
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One run for all tests, compiled once: each trains it a little further."""
    return ck.Run(ck.dense(10), DATA, batch=20, epochs=1, folder=tmp_path_factory.mktemp("run"))


def with_panel(made, panel=None):
    """The run with a panel of its own."""
    made.watch, made.control.lr_scale = panel or Panel(seconds=0.02), 1.0
    return made


def fit(made, epochs, panel=None):
    """So many epochs further, in this thread."""
    return with_panel(made, panel).fit(epochs=made.epoch + epochs)


def start(made, epochs, panel=None):
    """So many epochs further, in the background."""
    return with_panel(made, panel).start(epochs=made.epoch + epochs)


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def endless(made):
    """The run in the background, not ending by itself, its panel drawn at least once."""
    panel, before = start(made, 10**6).watch, made.epochs_done
    wait_for(lambda: panel.controls is not None and made.epochs_done > before and panel.drawings > 0)
    return panel


def stopped(made):
    made.stop()
    made.wait(20)


def cnnkit_threads():
    ours = ("cnnkit panel", "cnnkit monitor", "cnnkit training")
    return [thread.name for thread in threading.enumerate() if thread.name in ours]


def test_fit_leaves_exactly_one_output_with_figure_table_and_text(frontend, made, capsys):
    fit(made, 3)
    (last,) = frontend.outputs().values()
    assert set(last.data) == {"text/plain", "text/html", "image/png"}
    accuracy = f"{100 * made.history[-1]['test_accuracy']:.2f} %"
    for form in ("text/plain", "text/html"):
        assert f"digits: epoch {made.epoch}.0 of {made.epoch}, done" in last.data[form]
        assert accuracy in last.data[form]
    image = Image.open(io.BytesIO(base64.b64decode(last.data["image/png"])))
    assert image.size[0] == 1.5 * last.metadata["image/png"]["width"] == 1008
    assert last.data["image/png"] in last.data["text/html"]
    assert "script" not in last.data["text/html"]
    assert capsys.readouterr() == ("", "")


def test_a_second_fit_has_an_output_of_its_own_and_the_whole_curve(frontend, made):
    fit(made, 1)
    made.fit(epochs=made.epoch + 2)
    first, second = frontend.outputs().values()
    assert f"epoch {made.epoch - 2}.0 of {made.epoch - 2}, done" in first.data["text/plain"]
    assert f"epoch {made.epoch}.0 of {made.epoch}, done" in second.data["text/plain"]
    assert sorted(made.watch.progress.epoch_rows) == list(range(1, made.epoch + 1))


def test_fit_shows_no_control_and_says_why(frontend, made):
    fit(made, 2)
    assert not any(VIEW in message.data for message in frontend.messages)
    live = [m.data["text/html"] for m in frontend.messages if "image/png" not in m.data]
    assert any("fit() holds this kernel" in html for html in live)
    assert "holds this kernel" not in frontend.messages[-1].data["text/html"]


def test_buttons_pause_resume_save_and_stop_a_run_in_the_background(frontend, made):
    panel = endless(made)
    controls = panel.controls
    controls.pause.click()
    wait_for(lambda: made.phase == "paused" and "paused" in controls.face.value)
    assert controls.pause.description == "Resume"
    held, drawings = made.epochs_done, panel.drawings
    wait_for(lambda: panel.drawings > drawings + 3)
    assert made.epochs_done == held
    controls.pause.click()
    wait_for(lambda: made.epochs_done > held)
    assert controls.pause.description == "Pause"
    checkpoint = made.folder / "checkpoint.safetensors"
    checkpoint.unlink(missing_ok=True)
    controls.save.click()
    wait_for(checkpoint.exists)
    assert f"a checkpoint goes to {made.folder}" in controls.said
    controls.stop.click()
    made.wait(20)
    assert controls.box.children == (controls.face,)
    assert "stopped: run.fit() or run.start() goes on from here" in controls.face.value
    (last,) = frontend.outputs().values()
    assert "stopped: run.fit() or run.start() goes on from here" in last.data["text/html"]
    assert VIEW not in last.data


def test_widgets_are_part_of_the_live_bundle_beside_html_and_text(frontend, made):
    panel = endless(made)
    (shown,) = [m for m in frontend.messages if VIEW in m.data]
    assert shown.data[VIEW]["model_id"] == panel.controls.box.model_id
    assert "epoch" in shown.data["text/html"]
    assert "epoch" in shown.data["text/plain"]
    stopped(made)


def test_the_learning_rate_and_the_axis_change_while_it_trains(frontend, made):
    panel = endless(made)
    before = made.history[-1]["lr"]
    panel.controls.lr.value = 0.1
    assert made.control.lr_scale == pytest.approx(0.1)
    epoch = made.epoch
    wait_for(lambda: made.epoch > epoch + 1)
    assert made.history[-1]["lr"] == pytest.approx(0.1 * before, rel=0.01)
    panel.controls.x.value = "seconds"
    wait_for(lambda: "seconds of training" in panel.controls.face.value)
    stopped(made)
    assert 'alt="curves of the training"' in frontend.messages[-1].data["text/html"]


def steered(**changes):
    """What controls look at of a run."""
    engine = SimpleNamespace(**({"fetch_scale": None} if changes.pop("team", True) else {}))
    return SimpleNamespace(control=Control(), folder=None, phase="train", engine=engine, **changes)


def test_the_fetch_slider_acts_where_there_are_workers_to_set():
    run = steered()
    controls = Controls(run, "epochs", lambda x: None)
    assert controls.fetch in controls.box.children[2].children
    controls.fetch.value = 2.0
    assert run.control.fetch_scale == 2.0
    alone = Controls(steered(team=False), "epochs", lambda x: None)
    assert alone.fetch not in alone.box.children[2].children
    controls.close()
    alone.close()


def test_a_control_that_cannot_act_is_locked_and_says_why():
    controls = Controls(steered(), "epochs", lambda x: None, leads=False)
    assert controls.fetch.disabled
    assert controls.lr.disabled
    assert "set by its first process" in controls.lr.tooltip
    assert controls.save.disabled
    assert "give it one: folder=" in controls.save.tooltip
    controls.close()


def test_workers_fetch_and_busy_shares_are_shown_while_they_train_and_at_the_end(frontend):
    team = ck.Run(
        ck.dense(10),
        DATA,
        batch=10,
        epochs=3,
        workers=2,
        fetch=ck.fetch.warm_start(1, 4, epochs=2),
        watch=Panel(seconds=0.02),
    ).fit()
    live = [m.data["text/plain"] for m in frontend.messages if "image/png" not in m.data]
    assert any("worker 1" in text and "fetch" in text for text in live)
    last = frontend.messages[-1].data
    fetch = team.record.rounds()[-1]["fetch"]
    assert re.search(rf"worker 1: .*, fetch {fetch[1]}", last["text/plain"])
    assert "worker&nbsp;0" in last["text/html"]
    assert Image.open(io.BytesIO(base64.b64decode(last["image/png"]))).size[0] == 1209


def test_the_final_state_is_said_again_in_the_next_cell_once(frontend, made):
    start(made, 2).wait(20)
    before = len(frontend.messages)
    frontend.cell_ends()
    frontend.cell_ends()
    assert len(frontend.messages) == before + 1
    assert frontend.messages[-1].data == frontend.messages[-2].data
    assert frontend.callbacks == []


def test_redraws_are_a_second_apart_and_rarer_where_drawing_is_dear(frontend, monkeypatch):
    panel, waits, now = Panel(monitor=False), [], [0.0]
    costs = iter([0.001, 0.02, 0.001, 0.0])

    class End:
        def wait(self, seconds):
            waits.append(seconds)
            return len(waits) > 4

    def draw():
        now[0] += next(costs)

    panel._end = End()
    monkeypatch.setattr(panel, "_draw", draw)
    monkeypatch.setattr("cnnkit.notebook.panel.time.thread_time", lambda: now[0])
    panel._work(stub(), background=False)
    assert panel.drawings == 4
    assert waits == pytest.approx([0.2, 1.0, 4.0, 1.0, 1.0])


def test_two_panels_do_not_mix(frontend):
    one, two = Panel(seconds=0.01), Panel(seconds=0.01)
    runs = [stub(data=SimpleNamespace(name=name)) for name in ("first", "second")]
    for panel, run in zip((one, two), runs):
        panel.begin(run)
    wait_for(lambda: one.drawings > 3 and two.drawings > 3)
    for panel, run in zip((one, two), runs):
        panel.end(run, "done")
    ids = list(frontend.outputs())
    assert len(ids) == 2
    for i, name in zip(ids, ("first", "second")):
        said = {m.data["text/plain"].split(":")[0] for m in frontend.messages if m.id == i}
        assert said == {"starting", name}


def test_a_run_that_fails_ends_its_panel_too(frontend):
    panel, run = Panel(seconds=0.01).show(), stub()
    panel.begin(run)
    panel.end(run, "failed")
    assert len(frontend.outputs()) == 1
    assert "failed: the error stands below its cell" in frontend.messages[-1].data["text/plain"]
    assert cnnkit_threads() == []


def test_a_run_that_could_not_even_begin_does_not_hide_its_error(frontend):
    Panel().show().end(stub(), "failed")
    assert len(frontend.outputs()) == 1
    assert "failed" in frontend.messages[-1].data["text/plain"]


def test_a_view_that_fails_never_ends_the_training(frontend, made, monkeypatch):
    monkeypatch.setattr(Panel, "_draw", lambda self: 1 / 0)
    panel = endless_without_controls(made)
    stopped(made)
    assert panel.failure == "ZeroDivisionError: division by zero"
    assert "the live view failed: ZeroDivisionError" in frontend.messages[-1].data["text/plain"]


def test_a_last_figure_that_fails_leaves_the_text_and_the_training(frontend, made, monkeypatch):
    monkeypatch.setattr("cnnkit.notebook.plots.training", lambda run, x: 1 / 0)
    fit(made, 2)
    assert made.phase == "done"
    assert set(frontend.messages[-1].data) == {"text/plain"}
    assert "done" in frontend.messages[-1].data["text/plain"]


def endless_without_controls(made):
    panel, before = start(made, 10**6).watch, made.epochs_done
    wait_for(lambda: made.epochs_done > before and panel.drawings > 2)
    return panel


def test_without_widgets_the_panel_still_moves_and_names_the_calls(frontend, made, monkeypatch):
    monkeypatch.setitem(sys.modules, "cnnkit.notebook.controls", None)
    endless_without_controls(made)
    stopped(made)
    live = [m for m in frontend.messages if "image/png" not in m.data]
    assert len(live) > 2
    assert all(VIEW not in m.data for m in live)
    assert "run.control.lr_scale" in live[-1].data["text/html"]


def test_nothing_is_left_after_twenty_runs(frontend, made):
    start(made, 1).wait(20)
    frontend.cell_ends()
    widgets, threads = len(widget._instances), threading.active_count()
    for i in range(20):
        panel = Panel(seconds=0.02) if i % 4 else made.watch
        (start(made, 1, panel).wait(20) if i % 2 else fit(made, 1, panel))
        frontend.cell_ends()
    assert len(widget._instances) == widgets
    assert threading.active_count() <= threads
    assert cnnkit_threads() == []
    assert pylab.Gcf.get_num_fig_managers() == 0
    assert frontend.callbacks == []
    assert len(frontend.outputs()) == 21


def test_an_unknown_axis_is_named():
    with pytest.raises(ValueError, match="unknown x 'epoch': did you mean 'epochs'"):
        Panel(x="epoch")


def test_the_default_watcher_is_a_panel_in_a_notebook_and_plain_elsewhere(frontend, monkeypatch):
    assert isinstance(watch.default_watcher(), Panel)
    assert len(frontend.messages) == 1
    monkeypatch.setattr("cnnkit.notebook.watch.shell", lambda: None)
    assert isinstance(watch.default_watcher(), Lines)


def test_in_a_job_of_several_processes_one_speaks_and_all_are_sampled(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("cnnkit.notebook.watch.jax.process_index", lambda: 1)
    watcher = watch.default_watcher()
    run = SimpleNamespace(folder=tmp_path)
    watcher.begin(run)
    wait_for((tmp_path / "monitor-1.jsonl").exists)
    watcher.tick(run)
    watcher.row(run, {"kind": "epoch"})
    watcher.end(run, "done")
    assert capsys.readouterr().out == ""
    assert cnnkit_threads() == []
