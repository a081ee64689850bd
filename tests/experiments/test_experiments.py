"""Experiments: each runs in smoke size, leaves its files, and says what the work's own figure was."""

import io
import json

import jax
import numpy as np
import pytest

from cnnkit.command import main
from cnnkit.experiments import (
    EXPERIMENTS,
    accuracy,
    axes,
    balance,
    base,
    conv_algorithms,
    job,
    loading,
    reproduce,
    wait_free,
)
from cnnkit.experiments.base import Experiment, row, table
from cnnkit.notebook import style
from cnnkit.parallel.cost import RoundCost
from cnnkit.record.rows import Record
from cnnkit.train.run import Run

WORKS = [
    "conv_algorithms",
    "fetch_period",
    "load_balance",
    "warm_start",
    "scheduler",
    "single_machine",
    "overlap",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


def values(outcome, figure):
    return {r["case"]: r["value"] for r in outcome.rows if r["figure"] == figure}


def test_those_listed_are_there_and_say_the_same_of_themselves():
    assert set(WORKS) <= set(EXPERIMENTS)
    for name in EXPERIMENTS:
        experiment = base.find(name)
        assert experiment.name == name
        assert set(experiment.presets) == set(base.PRESETS)
        settings = [set(preset) for preset in experiment.presets.values()]
        assert settings[0] == settings[1] == settings[2], f"{name}: a setting is not in every preset"
        assert experiment.source


def test_accuracy_against_the_period(folder, capsys):
    outcome = reproduce("fetch_period", "smoke", folder)
    # 1,437 digits in mini-batches of 16 are 90; two epochs on two workers.
    assert values(outcome, "exchanges")["local every(1)"] == 90
    assert values(outcome, "exchanges")["local every(8)"] == 12
    accuracies = values(outcome, "accuracy")
    assert accuracies["accumulate every(1)"] - accuracies["accumulate every(8)"] > 5
    assert accuracies["local every(8)"] > 85
    curve = accuracy.value(outcome.rows, "local every(1)", "accuracy")["curve"]
    assert curve["examples"] == [1437, 2874]
    assert curve["accuracy"][-1] == pytest.approx(accuracies["local every(1)"], abs=0.01)
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == list(accuracies)
    written = json.loads((folder / "fetch_period.json").read_text())
    assert written["rows"] == outcome.rows
    assert written["command"] == "cnnkit reproduce fetch_period --preset smoke"
    assert {p.name for p in folder.glob("fetch_period.*")} == {
        f"fetch_period.{e}" for e in ("json", "png", "svg")
    }
    lines = accuracy.curves(outcome.rows, "seconds").axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["every(1)", "every(8)"]
    assert lines[0].get_xdata().tolist() == curve["seconds"]


@pytest.fixture
def hardly_optimized():
    """Most of such a training is compiling: optimizing what runs for a moment would double it."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.usefixtures("hardly_optimized")
def test_fast_networks_are_trained_again_and_again_after_one_compilation(folder, monkeypatch):
    seeds, again = [], Run.again
    monkeypatch.setattr(Run, "again", lambda run, seed: seeds.append(seed) or again(run, seed))
    outcome = reproduce("fast_cifar10", "smoke", folder)
    assert seeds == [1, 1, 2]  # the first once more, as a later training compiles what it alone needs
    found = {r["figure"]: r for r in outcome.rows}
    assert found["accuracy"]["n"] == found["seconds"]["n"] == 2
    assert found["accuracy"]["mean"] > 25  # of ten digits, after eight steps
    dots, mean = outcome.figure.axes[0].get_lines()
    assert dots.get_ydata().tolist() == found["accuracy"]["found"]
    assert mean.get_ydata()[0] == pytest.approx(found["accuracy"]["mean"], rel=1e-4)


def test_warm_start_lies_between_the_periods_that_it_joins(folder, monkeypatch):
    monkeypatch.setattr(job, "_here", lambda: True)  # in this process, as where there are GPUs
    outcome = reproduce("warm_start", "smoke", folder)
    exchanges = values(outcome, "exchanges")
    assert (
        exchanges["accumulate every(8)"]
        < exchanges["accumulate warm_start(1, 8)"]
        < exchanges["accumulate every(1)"]
    )
    assert len(outcome.figure.axes[2].get_lines()) > 0


@pytest.mark.long
def test_balance_keeps_unequal_workers_busy(folder):
    outcome = reproduce("load_balance", "smoke", folder)
    fetch = {r["case"]: r["fetch"] for r in outcome.rows if r["figure"] == "images_per_s"}
    assert fetch["1:0.5 synchronous"] == [1, 1]
    assert fetch["1:0.5 every(8)"] == [8, 8]
    fast, slow = fetch["1:0.5 balanced(every(8))"]
    assert fast > 1.3 * slow
    busy = {r["case"]: r["busy"] for r in outcome.rows if r["figure"] == "busy_min"}
    # The fast one of two equal shares waits for about half of the time; shares by speed keep it busier.
    equal, shared = busy["1:0.5 every(8)"], busy["1:0.5 balanced(every(8))"]
    assert equal[0] < 0.8 * equal[1]
    assert shared[0] > equal[0]
    record = Record(folder / "load_balance" / "1-0.5" / "runs" / "balanced-every-8")
    assert record.rounds()[0]["fetch"] == [8, 8]
    assert [fast, slow] in [r["fetch"] for r in record.rounds()]
    assert "predicted" in str(outcome)
    assert "utilization" not in str(outcome)


def as_predicted(cases, workers, folder, apart=False):
    """What `several` finds where rounds take exactly what the cost model says, an exchange 1 ms."""
    found = []
    for case in cases:
        steps = [case["wait"] / v for v in case["speeds"]]
        fetch = [20, 14] if str(case["fetch"]).startswith("balanced") else [case["fetch"]] * len(steps)
        exchange = 0.001 if len(steps) > 1 else 0.0
        cost = RoundCost(steps, fetch, exchange, case.get("delay", 0))
        one = {
            "images_per_s": [cost.throughput(case["batch"])] * 2,
            "busy": cost.busy.tolist(),
            "fetch": fetch,
        }
        found.append(one | {"exchange_seconds": exchange, "exchanging": [0.0] * len(steps)})
    return found


def test_all_that_one_machine_does_is_set_beside_the_thesis(folder, monkeypatch):
    monkeypatch.setattr(balance, "several", as_predicted)
    outcome = reproduce("single_machine", "small", folder)
    ratios = values(outcome, "over_sync")
    assert list(ratios) == ["synchronous", "fetch", "fetch, balance", "fetch, balance, delay"]
    # Steps of 10 and 14.3 ms: a synchronous round lasts 15.3 ms; 34 steps in 201 ms, in 200 where hidden.
    assert ratios["synchronous"] == 1
    assert ratios["fetch, balance"] == pytest.approx(34 / 0.201 / (2 / (0.01 / 0.7 + 0.001)), rel=1e-3)
    assert ratios["fetch, balance, delay"] == pytest.approx(34 / 0.2 / (2 / (0.01 / 0.7 + 0.001)), rel=1e-3)
    assert values(outcome, "of_ideal")["fetch, balance, delay"] == 1
    assert set(values(outcome, "predicted").values()) == {1}
    assert values(outcome, "utilization")["fetch"] == pytest.approx(
        16 * (0.01 + 0.01 / 0.7) / 2 / (16 * 0.01 / 0.7 + 0.001), rel=1e-3
    )
    line = next(
        line
        for line in str(outcome).splitlines()
        if line.startswith("fetch, balance  ") and "over_sync" in line
    )
    assert line.split()[3] == "1.237"


def test_convolutions_are_timed_by_every_algorithm(folder, capsys):
    assert main(["reproduce", "conv_algorithms", "n=2", "--preset", "smoke", "--folder", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "9×9, 4 → 4 channels, 16×16, batch 2  fft_ms" in text
    rows = json.loads((folder / "conv_algorithms.json").read_text())["rows"]
    assert len(rows) == 9
    assert {r["n"] for r in rows} == {2}
    assert all(r["value"] > 0 for r in rows)


def test_what_is_hidden_is_measured_against_the_longer_of_computing_and_exchanging(folder):
    outcome = reproduce("overlap", "smoke", folder)
    seconds, ratios = values(outcome, "step_ms"), values(outcome, "of_max")
    ways = ["one after the other", "hidden behind its own step", "hidden behind the next step too"]
    assert list(seconds) == [f"2 {how}, {way}" for how in ("server", "psum") for way in ways]
    exchanging, computing = values(outcome, "exchanging_ms"), values(outcome, "computing_ms")
    # 2 · 31,400 bytes over 100 Mbit/s for the server's one link, 31,400 each way between two; beside it, waking up.
    assert exchanging["2 server"] > 2 * 31_400 * 8 / 100e6 * 1000
    assert exchanging["2 psum"] > 31_400 * 8 / 100e6 * 1000
    for name in exchanging:
        longer = max(exchanging[name], computing[name])
        assert seconds[f"{name}, {ways[0]}"] == pytest.approx(ratios[f"{name}, {ways[0]}"] * longer, rel=2e-3)
    waiting = values(outcome, "waiting")
    assert set(waiting) == set(loading.SETTINGS)
    assert waiting["neither"] > 0
    assert [t.get_text() for t in outcome.figure.axes[0].get_xticklabels()] == ["server", "psum"]


def test_what_hides_is_a_part_of_the_shorter_one():
    found = {"computing": [0.2], "exchanging": [0.3], "off": [0.5], "across": [0.35]}
    assert wait_free.of_max(found, "off") == [pytest.approx(5 / 3)]
    assert wait_free.hidden(found, "across") == [pytest.approx(0.75)]
    assert wait_free.hidden(found, "off") == [0.0]
    with pytest.raises(ValueError, match=r"setting of a case.*ratio"):
        wait_free.imagined([{"ration": 1}], 2, "1gbit")


def test_parallelism_is_found_in_a_network_and_tasks_are_run_in_both_ways(folder):
    outcome = reproduce("scheduler", "smoke", folder)
    # Forward, loss, backward; an exchange and an update for weights and biases each.
    assert values(outcome, "operations") == {"linear": 7}
    assert values(outcome, "width") == {"linear": 2}
    assert values(outcome, "levels") == {"linear": 5}
    work, critical = values(outcome, "work")["linear"], values(outcome, "critical_path")["linear"]
    assert values(outcome, "allowed")["linear"] == pytest.approx(work / critical, rel=2e-3)
    assert work > critical
    pools, threads = values(outcome, "queues and pools"), values(outcome, "a thread per task")
    assert list(pools) == list(threads) == ["0 µs of work", "100 µs of work"]
    # Two cores do 100 µs of work in 50 at best.
    assert min(pools["100 µs of work"], threads["100 µs of work"]) > 40


def test_all_runs_every_one_of_them(tmp_path, monkeypatch, capsys):
    asked = []

    class Done:
        folder = tmp_path

        def __str__(self):
            return "done"

    monkeypatch.setattr("cnnkit.experiments.reproduce", lambda name, *_, **__: asked.append(name) or Done())
    assert main(["reproduce", "all", "--preset", "smoke", "--folder", str(tmp_path)]) == 0
    assert asked == list(EXPERIMENTS)


def test_unknown_names_suggest_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="fetch_period"):
        reproduce("fetch_priod", "smoke", tmp_path)
    with pytest.raises(ValueError, match="smoke"):
        reproduce("fetch_period", "smok", tmp_path)
    with pytest.raises(ValueError, match="periods"):
        reproduce("fetch_period", "smoke", tmp_path, period=[1])
    with pytest.raises(ValueError, match=r"setting of a case.*fetch"):
        job.several([{"fetsch": 1}], 1, tmp_path)
    with pytest.raises(ValueError, match="no row has case 'a' and figure 'b'"):
        accuracy.value([], "a", "b")


def test_waiting_workers_take_steps_in_proportion_to_their_speeds():
    case = {**job.DEFAULTS, "net": "linear", "speeds": [1, 0.5], "wait": 0.03, "workers": 2}
    emulated = job._run(case, epochs=1, judge=()).rules.emulated
    # Beside a step of no time, each waits for wait / speed.
    waits = [emulated.step_seconds * (1 / s - 1) for s in emulated.speeds]
    np.testing.assert_allclose(waits, [0.03, 0.06])


def test_data_is_repeated_in_order():
    digits, longer = job.dataset("digits"), job.dataset("digits", 3000)
    assert len(longer) == 3000
    np.testing.assert_array_equal(longer.train.images[1437 + 5], digits.train.images[5])
    assert job.dataset("noise", 50).shape == (32, 32, 3)


def test_windows_end_a_run_after_so_many():
    watch = job.Windows(n=2, seconds=1.0, warm=0.5)

    class Fake:
        data, record, stopped = range(100), type("R", (), {"rounds": staticmethod(list)}), 0

        def __init__(self):
            self.clocks = type("C", (), {"seconds": {"train": 0.0}})()
            self.engine = type("E", (), {"round": 0})()
            self.epochs_done = 0.0

        def stop(self):
            self.stopped += 1

    run = Fake()
    for second in np.arange(0, 5, 0.5):
        run.clocks.seconds["train"], run.engine.round, run.epochs_done = second, int(4 * second), second / 10
        watch.tick(run)
    # Six rounds are done after 1.5 seconds only.
    assert [mark[0] for mark in watch.marks] == [1.5, 2.5, 3.5]
    assert run.stopped == 1


def test_only_lines_of_cases_are_let_through():
    out = io.StringIO()
    spoken = job.Spoken(out)
    spoken.write("process0 | [Gloo] Rank 0 is connected\nprocess0 | case: every(1): 9")
    spoken.write("8 %\nprocess1 | ")
    assert out.getvalue() == "every(1): 98 %\n"


def test_the_table_keeps_what_is_shown_and_what_ours_lacks():
    experiment = Experiment(
        "toy",
        "A toy",
        "thesis",
        {},
        lambda *_: [],
        lambda rows: None,
        {("a", "x"): 2.0, ("c", "x"): 3.0},
        "Words of a note, " * 8,
        ("x",),
    )
    rows = [row("a", "x", [1.0, 2.0, 4.0], "s"), row("a", "y", [1.0], "s"), row("b", "x", [0.5], "s")]
    lines = table(experiment, rows, "a machine").splitlines()
    assert [line.split() for line in lines[3:6]] == [
        ["a", "x", "2", "2", "±", "1.5", "s", "3"],
        ["b", "x", "–", "0.5", "±", "0", "s", "1"],
        ["c", "x", "3", "–"],
    ]
    assert lines[6:8] == ["on a machine", "ours: median ± standard deviation over n"]
    assert " ".join(lines[8:]) == ("Words of a note, " * 8).strip()
    assert [len(line) <= 96 for line in lines[8:]] == [True, True]


def test_a_table_breaks_long_cases_before_a_notebook_breaks_its_lines():
    experiment = Experiment("toy", "A toy", "thesis", {}, lambda *_: [], lambda rows: None, {}, "")
    long = "single kernel 3, through 2 workers, warm_start(1, 8, epochs=1), and then some more words of it"
    rows = [row(long, "accuracy", [99.7, 99.8], "%"), row("short", "accuracy", [99.1], "%")]
    lines = table(experiment, rows, "a machine").splitlines()
    first, second, after = lines[3:6]
    assert max(map(len, lines)) <= 96
    assert first.split()[-5:] == ["99.75", "±", "0.071", "%", "2"]
    assert " ".join([first.partition("  ")[0], second.strip()]) == long
    assert (second[:2], after.split()) == ("  ", ["short", "accuracy", "–", "99.1", "±", "0", "%", "1"])


def test_decades_hold_all_values_and_show_plain_numbers():
    figure, (ax,) = style.figure(3, 3)
    axes.decades(ax, [0.3, 40])
    assert ax.get_xlim() == (0.1, 100)
    figure.png()
    assert [t.get_text() for t in ax.get_xticklabels()][1:-1] == ["0.1", "1", "10", "100"]
    assert not any(t.get_text() for t in ax.get_xticklabels(minor=True))


def test_strips_fill_the_time_of_every_worker():
    _, (ax,) = style.figure(3, 3)
    found = {"case": "a", "figure": "busy_min", "busy": [0.5, 0.9], "exchanging": [0.1, 0.1]}
    balance.strips(ax, [found])
    widths = [patch.get_width() for patch in ax.patches]
    np.testing.assert_allclose(widths, [50, 10, 40, 90, 10, 0], atol=1e-9)


def test_shapes_are_named_in_words():
    assert conv_algorithms.name((1, 8, 2, 3, 7)) == "7×7, 2 → 3 channels, 8×8, batch 1"
