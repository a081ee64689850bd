"""Committees and flocks: trained side by side as by themselves, kept, gone on with, and asked in several views."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cnnkit as ck
from cnnkit.layers import conv, dense, relu, serial
from cnnkit.train import Committee, committee, looks, vote
from cnnkit.train.flock import Flock
from cnnkit.train.judges import PLAIN, Seer, look


def net(width=8):
    return serial(dense(width), relu(), dense(10))


@pytest.fixture(scope="module")
def digits():
    return ck.load("digits").hold_out(200)


SHARED = {"batch": 64, "epochs": 2, "optimizer": ck.optim.sgd(ck.optim.one_cycle(0.05)), "watch": None}


@pytest.fixture(scope="module")
def settings():
    from cnnkit.train.report import Silent

    return SHARED | {"watch": Silent()}


@pytest.fixture(scope="module")
def kept(digits, settings, tmp_path_factory):
    """A committee of three, trained one after another, and its folder."""
    folder = tmp_path_factory.mktemp("committee")
    members = [net(), {"net": net(12), "epochs": 1}, net()]
    said = []
    made = committee(members, digits, folder=folder, say=said.append, **settings)
    return made, folder, members, said


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_members_are_runs_in_folders_of_their_own(kept, digits):
    made, folder, _, said = kept
    assert sorted(p.name for p in folder.iterdir()) == [
        "committee.json",
        "member-00",
        "member-01",
        "member-02",
    ]
    assert [(run.seed, run.epochs, run.epoch) for run in made] == [(0, 2, 2), (1, 1, 1), (2, 2, 2)]
    assert [text.partition(":")[0] for text in said] == ["member 0", "member 1", "member 2"]
    again = Committee.load(folder, digits)
    np.testing.assert_array_equal(again.predict(), made.predict())
    assert len(again) == 3
    alone = again.evaluate()["members"]
    assert alone == [run.history[-1]["test_accuracy"] for run in made]


def test_finished_members_are_not_trained_again_and_more_may_join(kept, digits, settings):
    made, folder, members, _ = kept
    before = [(folder / f"member-0{i}" / "checkpoint.safetensors").stat().st_mtime_ns for i in range(3)]
    said = []
    more = committee([*members, net(4)], digits, folder=folder, say=said.append, **settings)
    after = [(folder / f"member-0{i}" / "checkpoint.safetensors").stat().st_mtime_ns for i in range(3)]
    assert after == before
    assert [text.partition(":")[0] for text in said] == ["member 3"]
    assert same(more.runs[0].params, made.runs[0].params)
    written = json.loads((folder / "committee.json").read_text())
    assert written == {"members": [f"member-0{i}" for i in range(4)]}
    with pytest.raises(ValueError, match="holds another run: batch was 64, is 32"):
        committee(members, digits, folder=folder, **settings | {"batch": 32})
    written["members"].append("member-04")
    (folder / "committee.json").write_text(json.dumps(written))
    with pytest.raises(FileNotFoundError, match="member-04 holds no run"):
        Committee.load(folder, digits)


def test_side_by_side_gives_what_each_gives_by_itself(kept, digits, settings, tmp_path):
    made, _, _, _ = kept
    side = committee(
        [net(), {"net": net(), "seed": 2}], digits, folder=tmp_path, at_once=2, say=lambda _: None, **settings
    )
    for a, b in zip(side.runs, (made.runs[0], made.runs[2]), strict=True):
        for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5)
        assert a.history[-1]["train_accuracy"] == pytest.approx(b.history[-1]["train_accuracy"], abs=2e-3)
    again = Committee.load(tmp_path, digits)
    assert same(again.runs[1].params, side.runs[1].params)
    assert [row["epoch"] for row in again.runs[1].history] == [1, 2]
    assert again.evaluate("held_out")["members"] == [run.history[-1]["held_out_accuracy"] for run in again]
    said = []
    committee(
        [net(), {"net": net(), "seed": 2}], digits, folder=tmp_path, at_once=2, say=said.append, **settings
    )
    assert said == []


def test_devices_have_models_of_their_own_and_some_of_the_examples_may_do(digits, settings):
    run = ck.Run(net(), digits, **settings)
    part = np.arange(0, 1237, 2)
    flock = Flock(run.task, digits.train, 64, workers=2)
    flock.compile()
    found = flock.train([3, 4, 5], 2, part=part)
    assert flock._program.compilations == 1
    assert [(t.seed, t.rows[-1]["examples"]) for t in found] == [(3, 1238), (4, 1238), (5, 1238)]
    smaller = digits.train._replace(images=digits.train.images[part], labels=digits.train.labels[part])
    alone = Flock(run.task, smaller, 64).train([5], 2)[0]
    assert same(alone.model.params, found[2].model.params)
    assert alone.rows == found[2].rows


def test_a_flock_stops_at_a_loss_that_is_not_finite(digits, settings):
    wild = ck.Run(net(), digits, **settings | {"optimizer": ck.optim.sgd(1e30)})
    with pytest.raises(
        ck.train.diverge.Diverged, match=r"the loss of seed 7 is not a finite number since epoch 1"
    ):
        Flock(wild.task, digits.train, 64).train([7], 1)


def test_views_are_what_they_say():
    assert len(looks(shift=4, flip=True, percent=10, degrees=5)) == 5 * 2 * 9 * 3
    x = jnp.asarray(np.random.default_rng(0).random((2, 9, 9, 3)), jnp.float32)
    rows = looks(shift=2, flip=True)
    np.testing.assert_array_equal(look(x, rows[0]), x)
    np.testing.assert_array_equal(look(x, rows[1]), x[:, :, ::-1])
    # Down and right by two pixels: a crop of the middle then shows what was above and to the left.
    at = np.flatnonzero((rows[:, 0] == 2) & (rows[:, 1] == 2) & (rows[:, 2] == 0))[0]
    np.testing.assert_allclose(look(x, rows[at])[:, 2:, 2:], x[:, :-2, :-2], atol=1e-6)
    wider = looks(percent=50)[1:]
    assert {tuple(row[3:5]) for row in wider} == {
        (a, b) for a in (1.0, 0.5, 1.5) for b in (1.0, 0.5, 1.5)
    } - {(1.0, 1.0)}
    with pytest.raises(ValueError, match="looks: degrees is -1; it must be 0 or more"):
        looks(degrees=-1)


def test_chances_in_views_are_those_of_the_images_moved_by_hand(digits, settings):
    run = ck.Run(serial(conv(4, 3), relu(), dense(10)), digits, **settings)
    images = digits.test.images[:7]
    rows = looks(shift=1)
    found = Seer(run.task, batch=4)(run.model, images, rows)
    np.testing.assert_allclose(found[0], run.predict(images), atol=1e-6)
    at = next(i for i, row in enumerate(rows) if row[0] == 1 and row[1] == 1)
    moved = np.zeros_like(images)
    moved[:, 1:, 1:] = images[:, :-1, :-1]
    np.testing.assert_allclose(found[at], run.predict(moved), atol=1e-6)


def test_votes_are_counted_by_hand(kept, digits):
    chances = np.array([[[0.9, 0.1, 0.0]], [[0.4, 0.6, 0.0]], [[0.3, 0.5, 0.2]], [[0.5, 0.0, 0.5]]])
    np.testing.assert_allclose(vote(chances), [[0.525, 0.3, 0.175]])
    hard = vote(chances, "hard")
    np.testing.assert_allclose(hard, [[0.5, 0.5, 0.0]], atol=1e-5)
    assert hard.argmax(-1) == [0]
    assert hard.sum() == pytest.approx(1)
    with pytest.raises(ValueError, match=re.escape("unknown vote 'sofd': did you mean 'soft'?")):
        vote(chances, "sofd")
    made = kept[0]
    said = made.chances("test", looks(shift=1))
    assert said.shape == (3, 5, 360, 10)
    found = made.evaluate("test", looks(shift=1), "hard")
    wrong = vote(said.reshape(15, 360, 10), "hard").argmax(-1) != digits.test.labels
    assert found["wrong"] == np.flatnonzero(wrong).tolist()
    assert found["errors"] == wrong.sum()
    assert found["accuracy"] == pytest.approx(1 - wrong.mean())
    assert made.evaluate("test", PLAIN)["members"] == [run.evaluate()["accuracy"] for run in made]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "a committee needs members: networks, or settings"),
        ([{"seed": 3}], "member 0 has no net; give a network"),
        ([{"net": net(), "folder": "x"}], "member 0 has its own folder"),
        ([net(), {"net": net(), "seed": 0}], "members 0 and 1 are the same; give them other seeds"),
        ([net(), {"net": net(), "epochs": 0}], "epochs is 0; it must be"),
    ],
)
def test_members_that_cannot_be_are_named_before_anything_is_trained(digits, settings, members, message):
    with pytest.raises(ValueError, match=message):
        committee(members, digits, say=pytest.fail, **settings)


def test_members_may_differ_in_what_they_freeze_but_not_side_by_side(digits, settings, tmp_path):
    freezing = {"net": net(), "seed": 0, "freeze": [(1, 1)]}
    made = committee([net(), freezing], digits, say=lambda _: None, **settings)
    first = [np.asarray(run.params[0]["w"]) for run in made]
    assert np.abs(first[0] - first[1]).max() > 1e-3
    message = "freeze=((1, 1),) is for a Run; at_once, as for member 1, has one program for all epochs"
    with pytest.raises(ValueError, match=re.escape(message)):
        committee([net(), freezing], digits, folder=tmp_path, at_once=2, say=pytest.fail, **settings)
    crowd = {"net": net(4), "workers": 99}
    with pytest.raises(ValueError, match="devices"):
        committee([net(), crowd], digits, folder=tmp_path, at_once=2, say=pytest.fail, **settings)
    together = {"net": net(4), "outer": "nesterov", "fetch": 8}
    message = (
        "member 1 has outer='nesterov', fetch='every(8)', which is for workers that train one model together"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        committee([net(), together], digits, folder=tmp_path, at_once=2, say=pytest.fail, **settings)
    with pytest.raises(ValueError, match="at_once is 0; it must be a whole number"):
        committee([net()], digits, folder=tmp_path, at_once=0, say=pytest.fail, **settings)
    assert not list(tmp_path.iterdir())


def test_a_committee_that_is_not_there_or_not_ready_says_so(digits, settings, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no committee: it has no committee\.json"):
        Committee.load(tmp_path)
    (tmp_path / "committee.json").write_text("{")
    with pytest.raises(ValueError, match=r"committee.json is damaged"):
        Committee.load(tmp_path)
    ck.Run(net(), digits, folder=tmp_path / "member-00", **settings).save()
    (tmp_path / "committee.json").write_text('{"members": ["member-00"]}')
    with pytest.raises(ValueError, match=r"member-00 in .* is trained for 0 of 2 epochs"):
        Committee.load(tmp_path, digits)
    with pytest.raises(ValueError, match="2 networks were given for the 1 members"):
        Committee.load(tmp_path, digits, [net(), net()])
    with pytest.raises(ValueError, match="must have the same data set"):
        Committee([ck.Run(net(), digits, **settings), ck.Run(net(), ck.load("digits"), **settings)])
