"""What a panel knows of a run: its pace, the time left, its curve, and what its workers do."""

import numpy as np
import pytest

from cnnkit.notebook import face
from cnnkit.notebook.progress import Progress, Track
from tests.notebook.conftest import stub


def test_time_left_counts_neither_compiling_nor_pauses(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("cnnkit.notebook.progress.time.monotonic", lambda: now[0])
    progress, made = Progress(), stub()
    progress.begin(made)
    assert np.isnan(progress.left())
    now[0], made.epochs_done, made.clocks.seconds["compile"] = 130.0, 2.0, 20.0
    progress.tick(made)
    assert progress.left() == pytest.approx(10 / 2 * 8)
    made.phase = "paused"
    progress.tick(made)
    now[0], made.phase, made.epochs_done = 190.0, "train", 4.0
    progress.tick(made)
    assert progress.left() == pytest.approx(10 / 4 * 6)
    assert progress.elapsed() == 90


def test_the_pace_is_that_of_the_training_clock(monkeypatch):
    progress, made = Progress(), stub()
    progress.begin(made)
    made.examples_seen, made.clocks.seconds["train"] = 3000, 1.5
    progress.tick(made)
    assert progress.pace() == 2000
    assert "2,000 images/s; 10 ms a mini-batch of 20" in face.facts(progress)


def test_a_resumed_run_shows_the_curve_from_its_file():
    rows = [
        {"kind": "epoch", "epoch": e, "examples": 200 * e, "train_total": e, "test_accuracy": 0.1 * e}
        for e in (1, 2)
    ]
    progress = Progress()
    made = stub(rows, epochs_done=2.0)
    progress.begin(made)
    assert progress.curve("test_accuracy", "examples") == ([200, 400], [0.1, 0.2])
    made.record.rows.append(
        {"kind": "epoch", "epoch": 2, "examples": 400, "train_total": 3, "test_accuracy": 0.5}
    )
    progress.tick(made)
    assert progress.curve("test_accuracy", "seconds") == ([1, 3], [0.1, 0.5])


def test_of_a_run_that_was_done_before_no_share_is_awaited():
    progress, made = Progress(), stub(epochs_done=10.0)
    progress.begin(made)
    progress.end(made, "done")
    told = face.text(progress, None)
    left = "nothing was left to train, run.fit(epochs=…) with a larger number goes on"
    assert f"epoch 10.0 of 10, done\n{left}; took" in told
    assert "worker" not in told
    assert "worker" not in face.final_html(progress, None, None, 0, 0)


def rounds_row(i, **changes):
    row = {
        "kind": "rounds",
        "round": i,
        "rounds": 4,
        "epochs": 0.1 * i,
        "examples": 20 * i,
        "fetch": [1 + i, 2],
    }
    row |= {"seconds": 2.0, "busy": [0.5, None], "exchange_seconds": 0.1, "train_loss": 1.0}
    return row | changes


def test_busy_exchanging_and_waiting_add_up_and_the_unknown_is_not_0():
    progress = Progress()
    made = stub([rounds_row(i) for i in range(3)])
    progress.begin(made)
    first, second = progress.strips()
    assert [(round(share, 6), word) for share, _, word in first.parts] == [
        (0.5, "busy"),
        (0.2, "exchanging"),
        (0.3, "waiting"),
    ]
    assert (first.fetch, first.history) == (3, (1, 2, 3))
    assert second.parts == ()
    assert "worker 1: busy share not measured yet, fetch 2" in face.text(progress, None)
    made.record.rows.append(rounds_row(3, busy=[0.9, 0.7], seconds=6.0, exchange_seconds=1.5))
    progress.tick(made)
    assert [round(part[0], 6) for part in progress.strips()[0].parts] == [0.9, 0.1, 0.0]
    whole = progress.strips(whole=True)
    assert [round(part[0], 6) for part in whole[0].parts] == [0.7, 0.3, 0.0]
    assert round(whole[1].parts[0][0], 6) == 0.7


def test_rounds_that_a_resumed_run_repeats_replace_the_old_ones():
    progress = Progress()
    made = stub([rounds_row(i) for i in range(5)])
    progress.begin(made)
    made.record.rows.append(rounds_row(2, fetch=[9, 9]))
    progress.tick(made)
    assert [(point.number, point.fetch[0]) for point in progress.rounds.points()] == [(0, 1), (1, 2), (2, 9)]


def test_a_track_thins_itself_and_keeps_the_newest():
    track = Track(most=10)
    for i in range(1000):
        track.append(i)
    points = track.points()
    assert len(points) <= 12
    assert points[0] == 0
    assert points[-1] == 999
    assert points == sorted(points)


def test_the_redraw_of_a_long_run_is_small():
    progress = Progress()
    made = stub([rounds_row(i) for i in range(5000)])
    progress.begin(made)
    for i in range(5000):
        made.epochs_done, made.recent_loss = i / 500, 1 / (i + 1)
        progress.tick(made)
    assert len(face.live_html(progress, None, [], "epochs")) < 40_000
