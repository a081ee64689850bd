"""A run read again from its folder alone."""

import numpy as np
import optax
import pytest

from cnnkit.augment import chain, flip, rotate
from cnnkit.data import load
from cnnkit.layers import Layer, dense, serial
from cnnkit.parallel.emulate import emulate
from cnnkit.train import optim
from cnnkit.train.run import Run
from tests.train.conftest import Quiet, flat, plain_rows, small_net


def test_a_run_comes_back_with_all_its_settings(make, tmp_path, digits):
    run = make(
        small_net(), folder=tmp_path, optimizer=optim.adamw(optim.cosine(0.01, warmup=1)), augment=chain(flip(), rotate(5)),
        smoothing=0.1, dtype="bfloat16", workers=2, fetch="balanced(every(2))", delay=1, exchange="ring",
        payload="int8", momentum="average", outer="nesterov", outer_lr=0.5, emulate=emulate([1, 0.5]), judge="test",
        evaluate_every=2, checkpoint_every=5.0, normalize=False, seed=3,
    )  # fmt: skip
    run.save()
    again = Run.load(tmp_path, data=digits)
    assert again.config == run.config
    assert again.rules == run.rules
    np.testing.assert_array_equal(flat(again.params), flat(run.params))


def test_a_loaded_run_answers_and_goes_on(make, tmp_path, digits):
    whole = make(epochs=3).fit()
    run = make(folder=tmp_path, epochs=2).fit()
    again = Run.load(tmp_path, data=digits, watch=Quiet())
    assert again.evaluate("test") == run.evaluate("test")
    np.testing.assert_array_equal(again.predict(), run.predict())
    assert plain_rows(again) == plain_rows(run)
    assert (again.phase, again.epochs_done, again.examples_seen) == ("new", 2, 406)
    assert again.fit(3).phase == "done"
    assert plain_rows(again) == plain_rows(whole)


def test_sets_known_by_name_load_themselves(tmp_path):
    data = load("digits").hold_out(100)
    Run(serial(dense(10)), data, folder=tmp_path, batch=512).save()
    again = Run.load(tmp_path)
    assert again.data.fingerprint() == data.fingerprint()
    assert len(again.data.held_out.labels) == 100


def test_an_optimizer_of_ones_own_is_passed_again(tmp_path):
    mine = optim.Optimizer("mine", {}, optim.constant(0.1), 0.9, lambda lr, momentum: optax.sgd(lr, momentum))
    Run(serial(dense(10)), "digits", folder=tmp_path, optimizer=mine).save()
    assert Run.load(tmp_path, optimizer=mine).optimizer is mine
    with pytest.raises(
        ValueError, match=r"had an optimizer of your own making, 'mine'; pass it as optimizer="
    ):
        Run.load(tmp_path)


def test_a_run_of_many_workers_answers_where_there_are_few(make, tmp_path, digits, monkeypatch):
    for number, settings in enumerate(
        ({"delay": 1}, {"mode": "accumulate", "delay": 1}, {"payload": "bfloat16"})
    ):
        folder = tmp_path / str(number)
        run = make(folder=folder, workers=4, fetch=2, epochs=1, **settings).fit()
        answer = run.evaluate("test")
        again = Run.load(folder, data=digits, watch=Quiet())
        monkeypatch.setattr("cnnkit.parallel.workers.make", lambda n: pytest.fail("no mesh is needed"))
        assert again.evaluate("test")["loss"] == pytest.approx(answer["loss"], rel=1e-5)
        np.testing.assert_allclose(flat(again.params), flat(run.params), rtol=1e-4, atol=1e-6)
        monkeypatch.undo()
        assert Run.load(folder, data=digits, workers=1, watch=Quiet()).fit(2).epoch == 2


def test_what_cannot_be_read_says_what_to_do(make, tmp_path, digits):
    with pytest.raises(
        FileNotFoundError,
        match=r"holds no run: it has no config\.json\. Runs are folders that Run\(…, folder=…\) wrote; `cnnkit runs` lists them",
    ):
        Run.load(tmp_path)
    make(folder=tmp_path / "part").save()
    with pytest.raises(
        ValueError, match=r"saw another digits \(fingerprint .*, this one has .*\); pass the same as data="
    ):
        Run.load(tmp_path / "part")
    named = digits.__class__("mine", digits.train, digits.test, digits.classes)
    make(data=named, folder=tmp_path / "mine").save()
    with pytest.raises(ValueError, match=r"saw 'mine', which is not a set known by name; pass it as data="):
        Run.load(tmp_path / "mine")
    assert Run.load(tmp_path / "mine", data=named).data is named
    with pytest.raises(ValueError, match="holds another run: batch was 32, is 64"):
        Run.load(tmp_path / "mine", data=named, batch=64)


def test_layers_of_ones_own_must_be_given(make, tmp_path, digits):
    identity = Layer(
        lambda key, shape: ((), (), shape), lambda p, s, x, *, key=None, train=False: (x, s), "my_layer", {}
    )
    net = serial(identity, dense(10))
    run = make(net, folder=tmp_path).fit()
    with pytest.raises(ValueError, match="my_layer"):
        Run.load(tmp_path, data=digits)
    assert Run.load(tmp_path, net=net, data=digits).evaluate() == run.evaluate()
