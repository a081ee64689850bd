"""MNIST's and CIFAR-10's accuracies: choices on held-out images, tests once, rows on disk as they come."""

import itertools
import json
import re
import time

import jax
import numpy as np
import pytest

import cnnkit as ck
from benchmarks import accuracy as measured
from cnnkit.data.dataset import stratified
from cnnkit.experiments import cifar10_accuracy, committees, mistakes, mnist_accuracy, reproduce, trials
from cnnkit.experiments.trials import Book, Trial, best, chain, decayed, figures, right, surprise
from cnnkit.experiments.virtual import Turns
from cnnkit.layers import batch_norm, conv, dense, relu, serial, whiten
from cnnkit.train.report import Silent


@pytest.fixture(scope="module")
def digits():
    return ck.load("digits")


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """The committees of MNIST's experiment, on digits and without convolutions."""
    folder = tmp_path_factory.mktemp("reproduced")
    nets = {"wide": {"kernel": 5, "features": []}, "other": {"kernel": 3, "features": []}}
    changes = {"nets": nets, "try_with": "wide", "epochs": [1, 2], "tries": 2}
    return reproduce("mnist_accuracy", "smoke", folder, **changes), folder


def rows_of(rows, figure, begin=""):
    return [r for r in rows if r["figure"] == figure and r["case"].startswith(begin)]


def test_every_choice_has_the_held_out_figures_that_it_was_made_on(exact):
    rows = exact[0].rows
    recipes = rows_of(rows, "held_out_accuracy", "choice: wide")
    assert [(r["epochs"], r["n"]) for r in recipes] == [(1, 2), (2, 2)]
    better = max(recipes, key=lambda r: r["mean"])
    assert [r["chosen"] for r in recipes] == [r is better for r in recipes]
    singles = rows_of(rows, "held_out_accuracy", "choice: single")
    assert len(singles) == 2
    chosen = next(r["net"] for r in singles if r["chosen"])
    assert next(r["mean"] for r in singles if r["chosen"]) == max(r["mean"] for r in singles)
    tried = rows_of(rows, "held_out_accuracy", "choice: committee")
    assert len(tried) == 6
    assert tried[0]["chosen"]
    assert all(
        (a["mean"], -a["surprise"]) >= (b["mean"], -b["surprise"]) for a, b in itertools.pairwise(tried)
    )
    last = rows_of(rows, "accuracy", "committee")[0]
    assert (last["members"], last["views"], last["vote"]) == tuple(
        tried[0][k] for k in ("members", "views", "vote")
    )
    assert last["epochs"] == better["epochs"]
    assert next(r["chosen"] for r in rows_of(rows, "accuracy", f"single {chosen}"))


def test_the_test_set_is_asked_by_committees_without_a_member_in_common(exact):
    rows = exact[0].rows
    together = rows_of(rows, "accuracy", "committee")[0]
    assert (together["n"], len(together["samples"])) == (2, 2)
    assert together["mean"] == pytest.approx(np.mean(together["samples"]), abs=1e-4)
    confusion = np.array(together["confusion"])
    assert confusion.sum() == 360
    assert 100 * np.trace(confusion) / 360 == pytest.approx(together["samples"][0], abs=1e-3)
    assert len(together["wrong"]) == 360 - np.trace(confusion)
    labels = ck.load("digits").test.labels
    for number, label, said, often in together["wrong"]:
        assert labels[number] == label != said
        assert 1 <= often <= 2
    alone = [r for r in rows_of(rows, "accuracy", "single") if "views" not in r["case"]]
    assert all(r["n"] >= 2 and len(set(r["samples"])) > 1 for r in alone)


def test_rows_are_on_disk_and_drawn(exact):
    outcome, folder = exact
    assert json.loads((folder / "mnist_accuracy" / "rows.json").read_text()) == outcome.rows
    left, beside = outcome.figure.axes
    dots = [line for line in left.get_lines() if line.get_marker() == "o"]
    assert sorted(dots[-1].get_xdata()) == sorted(
        rows_of(outcome.rows, "accuracy", "committee")[0]["samples"]
    )
    assert len(beside.get_lines()) >= 1
    beside = [line.split() for line in str(outcome).splitlines() if line.startswith("committee")]
    assert [line[:4] for line in beside if "99.81" in line] == [["committee", "accuracy", "99.81", "–"]]


def test_networks_of_cifar10_are_chosen_tried_and_put_through_workers(tmp_path):
    outcome = reproduce("cifar10_accuracy", "smoke", tmp_path)
    tried = rows_of(outcome.rows, "held_out_accuracy")
    assert [r["chosen"] for r in tried] == [True, False]
    assert tried[0]["mean"] > tried[1]["mean"] + 10
    alone, seen, two = rows_of(outcome.rows, "accuracy")
    assert (alone["n"], seen["case"], two["n"]) == (2, "stack, 5 views", 1)
    assert two["case"] == "stack, 2 workers, warm_start(1, 8, epochs=1)"
    # 1,437 digits by two workers of 32 are 45 mini-batches: fewer exchanges than 23 an epoch.
    assert two["exchanges"] < 46
    assert abs(two["mean"] - alone["mean"]) < 15
    assert two["mean"] > 40


@pytest.mark.parametrize(
    "net",
    [
        serial(dense(16, decay=1e-3), batch_norm(), relu(), dense(10)),
        serial(whiten(2), relu(), dense(10)),  # its filters come from the images
    ],
    ids=["norm", "whitened"],
)
def test_workers_by_turns_do_what_workers_on_devices_do(digits, net):
    fetch, settings = "warm_start(1, 8, epochs=2)", {"batch": 32, "seed": 1, "watch": Silent()}
    optimizer = ck.optim.sgd(ck.optim.one_cycle(0.05), nesterov=True)
    run = ck.Run(
        net, digits, epochs=3, workers=2, fetch=fetch, judge=(), optimizer=optimizer, **settings
    ).fit()
    model, rows = Turns(run.task, digits.train, 32, 2, fetch).train(1, 3)
    for ours, theirs in zip(jax.tree.leaves(model.params), jax.tree.leaves(run.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert [r["exchanges"] for r in rows] == [r["rounds"] for r in run.history]
    assert rows[-1]["train_accuracy"] == pytest.approx(run.history[-1]["train_accuracy"], abs=1e-3)


def test_a_trial_learns_nothing_from_what_is_held_out(digits):
    trial = Trial(digits, 100, serial(dense(10)), batch=64)
    chosen = stratified(digits.train.labels, 100, 0)
    np.testing.assert_array_equal(trial.held.images, digits.train.images[chosen])
    assert set(trial.rest) == set(range(len(digits))) - set(chosen)
    trained, chances = trial.held_out([0], 2)
    assert trained[0].rows[-1]["examples"] == 2 * (1437 - 100)
    assert chances.shape == (1, 1, 100, 10)
    # Rates come with the call: at none, nothing is learned.
    still, _ = trial.held_out([0], 1, ck.optim.sgd(ck.optim.stages((1e-12, 1))))
    begun = trial.task.init(jax.random.fold_in(jax.random.key(0), 0), digits.shape)
    np.testing.assert_allclose(still[0].model.params[0]["w"], begun.params[0]["w"], atol=1e-9)


def test_what_trials_are_judged_by(tmp_path):
    said = np.array([[0.7, 0.3], [0.4, 0.6], [0.0, 1.0]])
    labels = np.array([0, 0, 0])
    assert right(said, labels) == pytest.approx(100 / 3)
    assert surprise(said, labels) == pytest.approx(-(np.log(0.7) + np.log(0.4) + np.log(1e-6)) / 3)
    rows = [figures("a", "x", [1.0, 3.0], "%"), figures("b", "x", [2.0, 2.0], "%", loss=1)]
    assert (rows[0]["mean"], rows[0]["samples"], rows[0]["n"]) == (2.0, [1.0, 3.0], 2)
    rows[0]["loss"] = 2
    assert best(rows, "loss")["case"] == "b"
    assert [r["chosen"] for r in rows] == [False, True]
    said = []
    book = Book(tmp_path, said.append)
    book.add(rows[0])
    book.add(rows[1])
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert said[0].endswith("a, x: 2 ± 1.4 (n = 2)")


def test_augmentations_and_decays_by_their_strengths():
    assert str(chain({"percent": 12, "degrees": 0, "elastic": 3.4})) == "scale(12) → elastic(3.4)"
    assert str(chain({"crop": 32, "pad": 4, "flip": 1, "cutout": 8})).startswith(
        "crop(32, pad=4) → flip() → cutout(8"
    )
    assert chain({"flip": 0}) is None
    with pytest.raises(ValueError, match=re.escape("unknown augmentation 'degres': did you mean 'degrees'?")):
        chain({"degres": 1})
    net = serial(conv(4, 3, decay=1.0), batch_norm(), serial(dense(2)))
    assert [decayed(net, 0.5).parts[0].decay, decayed(net, 0.5).parts[2].parts[0].decay] == [0.5, 0.5]
    assert decayed(net, None) is net


def test_views_are_of_five_kinds_and_begin_with_the_image_as_it_is():
    rows = committees.looks({"pixels": 1, "degrees": 6, "percent": 5})
    assert rows.shape == (15, 6)
    assert rows[0].tolist() == [0, 0, 0, 1, 1, 0]
    kinds = committees.LOOKS
    assert all(rows[i][5] != 0 for i in kinds["turned"] if i)
    assert all((rows[i][3:5] != 1).any() for i in kinds["scaled"] if i)
    assert all(rows[i][0] and rows[i][1] for i in kinds["shifted"] if i)
    assert len(kinds["all"]) == 15


def test_a_search_stops_at_its_limit_with_the_least_number_of_committees(monkeypatch, tmp_path):
    settings = {
        **mnist_accuracy.EXPERIMENT.presets["smoke"],
        "committees": 5,
        "least": 3,
        "each": 2,
        "singles": 8,
        "timed": True,
    }
    search = mnist_accuracy.Search(settings, tmp_path)
    monkeypatch.setattr(trials.Book, "seconds", property(lambda self: 1e6))
    asked = []

    class Fake:
        seconds = 0.0

        def __init__(self, net):
            self.net = net

        def tested(self, seeds, epochs):
            asked.append((self.net, list(seeds)))
            self.seconds += 1.5 * len(seeds)
            row = {"train_accuracy": 0.5}
            trained = [trials.Trained(seed, None, [row] * epochs) for seed in seeds]
            return trained, np.random.default_rng(seeds[0]).random((len(seeds), 15, 360, 10))

    fakes = {net: Fake(net) for net in ("a", "b")}
    monkeypatch.setattr(search, "trial", lambda net, augmentation: fakes[net])
    search._test("turned", 3, "a", ["a", "b"], ("turned", "soft"))
    seeds = [seed for net, some in asked for seed in some if net == "a"]
    assert seeds == [1000, 1001, 1002, 1003, 1004, 1005, 2000, 2001]
    found = {(r["case"], r["figure"]): r for r in search.book.rows}
    assert list(found) == [
        ("single a, digits", "accuracy"),
        ("single a, digits, views turned", "accuracy"),
        ("single b, digits", "accuracy"),
        ("single b, digits, views turned", "accuracy"),
        ("committee, digits", "accuracy"),
        ("committee, digits", "seconds"),
    ]
    assert [r["n"] for r in found.values()] == [8, 8, 6, 6, 3, 3]
    assert found["committee, digits", "seconds"]["samples"] == [6.0, 6.0, 6.0]
    assert len(found["single a, digits", "accuracy"]["train_curve"]) == 3


def test_what_was_kept_is_read_told_and_drawn(exact, digits, tmp_path):
    outcome, folder = exact
    (tmp_path / "reproduced").mkdir()
    (tmp_path / "reproduced" / "mnist_accuracy.json").write_bytes(
        (folder / "mnist_accuracy.json").read_bytes()
    )
    found = mistakes.kept("mnist_accuracy", tmp_path)
    assert found["rows"] == outcome.rows
    (tmp_path / "mnist_accuracy.json").write_text('{"name": "mnist_accuracy", "rows": []}')
    assert mistakes.kept("mnist_accuracy", tmp_path)["rows"] == []
    assert mistakes.kept("mnist_accuracy", tmp_path, small=True) == found
    assert mistakes.told(found) == str(outcome)
    lines = mistakes.choices(found["rows"]).splitlines()
    assert sum(line.startswith("*") for line in lines) == 3
    assert all(re.search(r"\d\d\.\d\d .*% \(n = \d\)$", line) for line in lines)
    together = mistakes.committee(found["rows"])
    assert together["data"] == "digits"
    titles = [ax.get_title() for ax in mistakes.wrong(found["rows"], digits).axes if ax.get_title()]
    _, label, said, often = max(together["wrong"], key=lambda m: m[3])
    assert len(titles) == len(together["wrong"])
    assert titles[0].endswith(f"{often} of 2")
    assert f"{label} → {said}\n{often} of 2" in titles
    (ax,) = mistakes.confusion(found["rows"], digits.classes).axes
    assert ax.get_title() == f"{np.trace(together['confusion'])} of 360 right"
    assert ax.images[0].get_array().trace() == 0
    (tmp_path / "mnist_accuracy.json").write_text('{"rows": []}')
    assert mistakes.kept("mnist_accuracy", tmp_path) == {"rows": []}
    with pytest.raises(
        FileNotFoundError, match=r"nothing was kept of cifar10_accuracy: neither .* measure it with cnnkit"
    ):
        mistakes.kept("cifar10_accuracy", tmp_path)
    with pytest.raises(ValueError, match="these rows have no committee"):
        mistakes.committee([])


def test_a_measurement_whose_time_is_over_leaves_what_it_has(monkeypatch, tmp_path, capsys):
    class Slow:
        def __init__(self):
            self.book = Book(tmp_path)

        def run(self):
            self.book.add(figures("single a", "accuracy", [99.0, 99.2], "%"))
            time.sleep(30)

    monkeypatch.setattr(measured, "_search", lambda *_: Slow())
    assert measured.main(["mnist", "--seconds", "1", "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "the 1 seconds are over" in said
    assert '{"case": "single a", "figure": "accuracy", "mean": 99.1, "spread": 0.14, "n": 2}' in said
    assert json.loads((tmp_path / "mnist_accuracy.json").read_text())["rows"][0]["samples"] == [99.0, 99.2]


def test_what_was_chosen_goes_through_two_workers_afterwards(exact, monkeypatch, tmp_path):
    rows = exact[0].rows
    (tmp_path / "mnist_accuracy.json").write_text(json.dumps({"machine": "another", "rows": rows}))
    asked = []

    def by_workers(self, net, augmentation, epochs, workers):
        asked.append((net, augmentation, epochs, workers["seeds"]))
        self.book.add(figures("two", "accuracy", [1.0], "%"))

    monkeypatch.setattr(mnist_accuracy.Search, "by_workers", by_workers)
    measured.main(["mnist", "--preset", "smoke", "--workers", "3", "--into", str(tmp_path)])
    chosen = next(r for r in rows if r["case"].startswith("single") and r["chosen"])
    assert asked == [(chosen["net"], "turned", chosen["epochs"], 3)]


def test_the_way_to_train_is_chosen_by_held_out_images_then_by_how_sure_they_are_judged(
    monkeypatch, tmp_path
):
    muon = mnist_accuracy.EXPERIMENT.presets["full"]["ways"]["Muon"] | {"batch": 32}
    smoke = mnist_accuracy.EXPERIMENT.presets["smoke"]
    search = mnist_accuracy.Search(
        {**smoke, "ways": {**smoke["ways"], "Muon": muon, "worse": muon}}, tmp_path
    )
    sure = {"SGD": 0.6, "Muon": 0.9, "worse": 0.2}

    def held_out(net, augmentation, epochs):
        trial = search.trial(net, augmentation)
        right = np.eye(10)[trial.held.labels]
        chances = sure[search.way] * right + (1 - sure[search.way]) * np.roll(right, 1, 1)
        return np.broadcast_to(chances, (1, 15, *chances.shape))

    monkeypatch.setattr(search, "_compile", lambda pairs: None)
    monkeypatch.setattr(search, "_held_out", held_out)
    augmentation, epochs, found = search._recipe()
    assert (search.way, augmentation, epochs, list(found)) == ("Muon", "turned", 2, ["kernel 5"])
    ways, (last,) = search.book.rows[:3], search.book.rows[3:]
    assert [(r["case"], r["mean"], r["chosen"]) for r in ways] == [
        ("choice: SGD", 100.0, False),
        ("choice: Muon", 100.0, True),
        ("choice: worse", 0.0, False),
    ]
    assert (last["case"], last["way"]) == ("choice: kernel 5, turned, 2 epochs", "Muon")
    assert last["surprise"] == pytest.approx(-np.log(0.9), abs=1e-4)
    trial = search.trial("kernel 5", "turned")
    assert (trial.task.optimizer.name, trial.flock.batch) == ("muon", 32)
    assert search.trial("kernel 5", "turned") is trial


def test_ways_that_are_chosen_between_are_told_apart():
    for preset in cifar10_accuracy.EXPERIMENT.presets.values():
        for case in preset["cases"].values():
            told = [cifar10_accuracy._told(way) for way in case["tries"]]
            assert len(set(told)) == len(told)
