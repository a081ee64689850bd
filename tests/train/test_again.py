"""Trainings one after another in one run, whole epochs in one dispatch, and what the network computes in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.augment import chain, crop, flip
from cnnkit.layers import conv, dense, relu, serial, whiten
from cnnkit.train import optim, standing
from tests.train.conftest import flat, plain_rows


def whitened():
    return serial(whiten(2), relu(), dense(10))


SETTINGS = {
    "augment": chain(flip(mode="alternate"), crop(8, pad=1, outside="reflect")),
    "optimizer": optim.muon(optim.one_cycle(0.1, rise=0.0), unit=True, matrices=0.5, rest_momentum=0.5),
    "epochs": 3,
}


@pytest.fixture(scope="module")
def often(request):
    """A run of seed 0 gone through, then again with seed 5."""
    from cnnkit.data import load
    from cnnkit.train.run import Run
    from tests.train.conftest import Quiet

    data = load("digits").take(train=203, test=101)
    run = Run(whitened(), data, batch=32, watch=Quiet(), dispatch="epoch", **SETTINGS).fit()
    first = plain_rows(run)
    return run.again(5).fit(), first


def test_a_training_again_is_that_of_a_run_with_its_seed(often, make):
    run, rows = often
    fresh = make(whitened(), dispatch="epoch", seed=5, **SETTINGS).fit()
    # The weights are drawn in one program, where a fresh run draws them one by one: equal to rounding.
    np.testing.assert_allclose(flat(run.params), flat(fresh.params), rtol=1e-4, atol=1e-5)
    assert plain_rows(run) != rows
    assert [row["rounds"] for row in run.history] == [7, 14, 21]
    assert run.config["seed"] == 5
    assert run.engine.compilations() == 1


def test_weights_drawn_by_one_program_are_those_drawn_one_by_one(make, monkeypatch):
    """As a GPU draws them; the trainings after the first have nothing left to compile."""
    by_pieces = make(whitened(), dispatch="epoch", seed=5, **SETTINGS)
    monkeypatch.setattr(standing, "_in_pieces", lambda: False)
    for ahead in (True, False):  # beside the first program, or by itself
        whole = make(whitened(), dispatch="epoch", seed=5, **SETTINGS)
        if ahead:
            whole.fit()
            assert whole.again(5).fit().clocks.seconds["compile"] == 0
            whole = whole.again(5)
        np.testing.assert_allclose(flat(whole.params), flat(by_pieces.params), rtol=1e-4, atol=1e-5)


def test_whole_epochs_are_the_same_training(often, make):
    _, rows = often
    by_time = make(whitened(), seed=0, **SETTINGS).fit()
    for a, b in zip(rows, plain_rows(by_time), strict=True):
        assert a.pop("kind") == b.pop("kind")
        assert a == pytest.approx(b, rel=1e-4)


def test_an_epoch_begun_by_time_is_ended_by_whole_epochs_bit_for_bit(make, tmp_path):
    from tests.train.conftest import Quiet

    stop = lambda run: run.stop() if run.epoch == 0 else None
    straight = make(whitened(), dispatch="epoch", folder=tmp_path / "a", **SETTINGS).fit()
    settings = SETTINGS | {"dispatch": "epoch", "folder": tmp_path / "b"}
    make(whitened(), watch=Quiet(stop), **settings).fit()
    resumed = make(whitened(), **settings)
    assert 0 < resumed.epoch < 3
    resumed.fit()
    np.testing.assert_array_equal(flat(resumed.params), flat(straight.params))
    assert plain_rows(resumed) == plain_rows(straight)
    with pytest.raises(ValueError, match=r"holds the training of seed 0; make another Run for 1"):
        straight.again(1)


def test_the_filters_are_measured_on_the_training_images_and_stay(often, digits):
    run, _ = often
    x = np.asarray(run.task.inputs(jnp.asarray(digits.train.images)), np.float64)
    taps = [x[:, i : i + 7, j : j + 7] for i in (0, 1) for j in (0, 1)]
    moments = np.einsum("abcd,ebcd->ae", *2 * [np.stack([t[..., 0] for t in taps])]) / (203 * 49)
    w = np.asarray(run.state[0]["w"], np.float64).reshape(4, 8)[:, :4]
    values = np.linalg.eigvalsh(moments)[::-1]
    np.testing.assert_allclose(w.T @ moments @ w, np.diag(values / (np.sqrt(values + 5e-4) ** 2)), atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "kind", "precision"),
    [
        ("float32", "float32", (jax.lax.Precision.HIGHEST,) * 2),
        ("tf32", "float32", (jax.lax.Precision.HIGH,) * 2),  # TF32 is what a GPU takes for it
        ("bfloat16", "bfloat16", None),
    ],
)
def test_what_a_gpu_is_told_to_compute_in(make, monkeypatch, dtype, kind, precision):
    run = make(serial(conv(4, 3), relu(), dense(10)), dtype=dtype)
    model = run.model
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def loss(params):
        x = run.task.inputs(jnp.zeros((2, 8, 8, 1), jnp.uint8))
        return run.task.logits(params, model.state, x, None, True)[0].sum()

    made = jax.make_jaxpr(jax.grad(loss))(model.params)
    assert all(v.aval.dtype == jnp.float32 for v in made.jaxpr.outvars), "weights' gradients stay float32"
    products = [e for e in made.jaxpr.eqns if e.primitive.name in ("conv_general_dilated", "dot_general")]
    assert len(products) >= 4, "both passes"
    for e in products:
        assert {str(v.aval.dtype) for v in e.invars} == {kind}
        assert e.params["precision"] == precision
