"""One worker: what is counted, what is computed, what is recorded."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.augment import chain, flip, noise
from cnnkit.data import batches, from_arrays
from cnnkit.layers import dense, relu, serial
from cnnkit.train import clock, loop, optim
from cnnkit.train.evaluate import Judge, padded_batches
from cnnkit.train.run import Run
from tests.train.conftest import Quiet, flat, plain_rows, small_net, tiny_net


def one_hot_images(n: int = 40, classes: int = 2):
    """Image k is white at pixel k alone, so that row k of a dense layer learns from example k alone."""
    images = np.zeros((n, 8, n // 8, 1), np.uint8)
    images.reshape(n, -1)[np.arange(n), np.arange(n)] = 255
    labels = (np.arange(n) * 7 % 3 % classes).astype(np.int32)
    return from_arrays(images, labels, images[:8], labels[:8], name="pixels")


@pytest.mark.parametrize("batch", [7, 40])
def test_every_example_counts_exactly_once_an_epoch(make, batch):
    data = one_hot_images()
    run = make(
        serial(dense(2, bias=False)), data, batch=batch, epochs=3, normalize=False, loss="squared_error",
        optimizer=optim.sgd(0.5, momentum=0),
    )  # fmt: skip
    w = np.float64(run.params[0]["w"])
    target = np.eye(2)[data.train.labels]
    for epoch in range(3):
        index, weight = batches(40, batch, 0, epoch)
        for i, n in zip(index, weight.sum(1), strict=True):
            mine = i[: int(n)]
            w[mine] -= 0.5 / n * (w[mine] - target[mine])
    run.fit()
    np.testing.assert_allclose(run.params[0]["w"], w, atol=1e-6)
    assert [row["examples"] for row in run.history] == [40, 80, 120]
    assert run.examples_seen == 120


@pytest.mark.parametrize("batch", [1, 7, 101, 500])
def test_evaluation_is_exact_for_any_batch(make, digits, batch):
    run = make()
    chances = run.predict("test").astype(np.float64)
    labels = digits.test.labels
    judged = Judge(run.task, digits.test, run.clocks, batch)(run.params, run.state)
    assert judged["examples"] == 101
    assert judged["errors"] == (chances.argmax(1) != labels).sum() == round(101 * (1 - judged["accuracy"]))
    assert judged["loss"] == pytest.approx(-np.log(chances[np.arange(101), labels]).mean(), rel=1e-5)


def test_padded_batches_go_through_all_in_order():
    index, weight = padded_batches(5, 2)
    assert index.tolist() == [[0, 1], [2, 3], [4, 4]]
    assert weight.tolist() == [[1, 1], [1, 1], [1, 0]]


def test_predictions_are_chances_and_ask_for_images_as_in_training(make, digits):
    run = make()
    chances = run.predict(digits.test.images[:7], batch=3)
    assert (chances.shape, chances.dtype) == ((7, 10), np.float32)
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(chances, run.predict("test")[:7], atol=1e-6)
    before = run.clocks.seconds["compile"]
    run.predict(digits.test.images[7:14], batch=3)
    assert run.clocks.seconds["compile"] == before
    for images in (
        digits.test.images[0],
        digits.test.images / 255,
        digits.test.images[:, :4],
        digits.test.images[:0],
    ):
        with pytest.raises(ValueError, match=r"images are .*; they must be uint8 \[N, 8, 8, 1\], 0 to 255"):
            run.predict(images)


def test_equal_seeds_give_equal_numbers_and_others_do_not(make):
    settings = {"net": small_net(), "augment": chain(flip(), noise(0.1)), "epochs": 1}
    one, same, other = (make(**settings, seed=seed).fit() for seed in (1, 1, 2))
    np.testing.assert_array_equal(flat(one.model), flat(same.model))
    assert plain_rows(one) == plain_rows(same) != plain_rows(other)
    assert np.abs(flat(one.params) - flat(other.params)).max() > 0.1


def test_how_a_run_is_cut_into_dispatches_changes_nothing(make, monkeypatch):
    whole = make(small_net(), epochs=1).fit()
    monkeypatch.setattr(loop, "TICK", 1e-4)
    cut = make(small_net(), epochs=1).fit()
    assert cut.watch.calls.count("train") == 7
    np.testing.assert_array_equal(flat(whole.model), flat(cut.model))
    assert plain_rows(whole) == plain_rows(cut)


def test_decay_and_rates_of_layers_are_their_own(make):
    data = one_hot_images(8)
    layers = dense(3, decay=0.5), dense(2, lr=0.25, decay=0.1), dense(2, lr=0.0)
    run = make(
        serial(*layers), data, batch=8, epochs=1, normalize=False, loss="squared_error",
        optimizer=optim.sgd(0.1, momentum=0),
    )  # fmt: skip
    before = jax.tree.map(np.float64, run.params)
    after = run.fit().params
    x, target = np.eye(8), np.eye(2)[data.train.labels]
    a = x @ before[0]["w"] + before[0]["b"]
    b = a @ before[1]["w"] + before[1]["b"]
    up = ((b @ before[2]["w"] + before[2]["b"]) - target) / 8
    into_b = up @ before[2]["w"].T
    into_a = into_b @ before[1]["w"].T
    expected = [
        {
            "w": before[0]["w"] - 0.1 * (x.T @ into_a + 0.5 * before[0]["w"]),
            "b": before[0]["b"] - 0.1 * into_a.sum(0),
        },
        {
            "w": before[1]["w"] - 0.025 * (a.T @ into_b + 0.1 * before[1]["w"]),
            "b": before[1]["b"] - 0.025 * into_b.sum(0),
        },
        before[2],
    ]
    for now, then in zip(after, expected, strict=True):
        for name in ("w", "b"):
            np.testing.assert_allclose(now[name], then[name], atol=1e-6)


def test_bfloat16_computes_in_bfloat16_and_keeps_weights_in_float32(make):
    half, whole = (make(small_net(), dtype=dtype, epochs=3).fit() for dtype in ("bfloat16", "float32"))
    for leaf in jax.tree.leaves(half.model):
        assert leaf.dtype == jnp.float32
    x = jnp.zeros((2, 8, 8, 1), jnp.uint8)
    text = str(
        jax.make_jaxpr(lambda m: half.task.logits(m.params, m.state, half.task.inputs(x), None, False)[0])(
            half.model
        )
    )
    assert ":bf16[2,10] = dot_general" in text
    assert ":f32[2,10] = dot_general" not in text
    loss = half.history[-1]["train_loss"]
    assert loss != whole.history[-1]["train_loss"]
    assert loss == pytest.approx(whole.history[-1]["train_loss"], rel=0.05)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_label_smoothing_spreads_a_part_over_all_classes(make, digits, smoothing):
    run = make(smoothing=smoothing)
    logs = np.log(run.predict("test").astype(np.float64))
    goal = (1 - smoothing) * np.eye(10)[digits.test.labels] + smoothing / 10
    assert run.evaluate("test")["loss"] == pytest.approx(-(goal * logs).sum(1).mean(), rel=1e-5)


def test_images_are_normalized_by_the_training_set_unless_not(make, digits):
    mean, std = digits.train.images.mean() / 255, digits.train.images.std() / 255
    x = digits.test.images[:2]
    for normalize, wanted in ((True, (x / 255 - mean) / std), (False, x / 255)):
        np.testing.assert_allclose(make(normalize=normalize).task.inputs(jnp.asarray(x)), wanted, atol=1e-5)


def test_augmentations_that_alternate_know_example_and_epoch(make):
    run = make(augment=chain(flip(mode="alternate")))
    plans = [loop.lay_out(run, epoch) for epoch in (0, 1)]
    batch = run.data.train.images[plans[0].index[0]]
    from cnnkit.train.step import Source, mini_batch

    at = mini_batch(Source(*run.data.train), plans[0], 0)
    even = run.task.augmented(at, jax.random.key(0))
    odd = run.task.augmented(at._replace(epoch=np.int32(1)), jax.random.key(0))
    plain = run.task.inputs(batch)
    turned = np.array([not np.array_equal(a, b) for a, b in zip(even, plain, strict=True)])
    assert 0 < turned.sum() < len(turned)
    np.testing.assert_array_equal(odd[:, :, ::-1], even)
    run.fit(1)


def test_history_goes_on_over_several_fits(make):
    once = make(epochs=3).fit()
    often = make(epochs=1).fit()
    assert often.fit(2) is often
    often.fit(3)
    often.fit(3)
    assert [row["epoch"] for row in often.history] == [1, 2, 3]
    assert plain_rows(once) == plain_rows(often)
    assert often.config["epochs"] == 3
    np.testing.assert_array_equal(flat(once.params), flat(often.params))


def test_an_epochs_row_says_what_a_curve_needs(make):
    run = make(epochs=2, optimizer=optim.sgd(optim.stages((0.05, 0.5, 1), (0.025, 0.25, 1)))).fit()
    row = run.history[1]
    assert (row["epoch"], row["examples"], row["rounds"], row["lr"], row["momentum"]) == (
        2,
        406,
        14,
        np.float32(0.025),
        0.25,
    )
    assert {"train_loss", "train_accuracy", "test_loss", "test_accuracy"} <= set(row)
    assert row["train_total"] == pytest.approx(sum(r["train_seconds"] for r in run.history))
    assert row["test_accuracy"] == run.evaluate("test")["accuracy"]
    assert run.recent_loss > 0
    assert run.watch.calls[0] == "begin"
    assert run.watch.calls[-1] == "done"
    assert run.watch.calls.count("epoch") == 2


def test_what_is_judged_and_how_often(make, digits):
    run = make(data=digits.hold_out(50), epochs=3, evaluate_every=2).fit()
    assert run.judge == ("held_out", "test")
    assert ["test_accuracy" in row for row in run.history] == [False, True, True]
    assert "held_out_loss" in run.history[-1]
    only = make(epochs=1, judge="train").fit().history[0]
    assert "train_accuracy" in only
    assert "test_accuracy" not in only


def test_the_model_that_was_asked_for_stays(make):
    run = make()
    before = run.params
    kept = flat(before).copy()
    run.fit()
    np.testing.assert_array_equal(flat(before), kept)
    assert np.abs(flat(run.params) - kept).max() > 0


def test_nothing_compiles_while_the_training_clock_runs(make, monkeypatch):
    clocks, compiled = [], []
    measure = clock.Clocks.measure

    def spy(self, kind):
        clocks.append(kind)
        context = measure(self, kind)
        end = context.__exit__

        class Both:
            def __enter__(self):
                return context.__enter__()

            def __exit__(self, *exc):
                clocks.pop()
                return end(*exc)

        return Both()

    monkeypatch.setattr(clock.Clocks, "measure", spy)
    compile = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda self, *a, **k: compiled.append(clocks[-1]) or compile(self, *a, **k),
    )
    make().fit()
    # The training's steps, and the evaluation.
    assert compiled == ["compile", "compile"]


@pytest.mark.parametrize("workers", [None, 2])
def test_clocks_stop_only_when_the_device_is_done(make, monkeypatch, workers):
    """What a program computes is there when it is waited for, and not when it was called."""
    late = ["no clock"]  # programs that were called and not waited for yet, since the clock that runs began
    stopped: dict[str, list[int]] = {"train": [], "evaluate": [], "compile": []}
    measure, program, asarray = clock.Clocks.measure, clock.Compiled.program, np.asarray

    @contextlib.contextmanager
    def spy(self, kind):
        with measure(self, kind):
            before = len(late)
            yield
            stopped[kind].append(len(late) - before)

    def calls(self, *args):
        made = program(self, *args)
        return lambda *a: (made(*a), late.append(made))[0]

    def waits(wait):
        return lambda *a, **k: (wait(*a, **k), late.clear())[0]

    def array(given, *args, **settings):
        if isinstance(given, jax.Array):
            late.clear()
        return asarray(given, *args, **settings)

    run = make(workers=workers)
    monkeypatch.setattr(clock.Clocks, "measure", spy)
    monkeypatch.setattr(clock.Compiled, "program", calls)
    monkeypatch.setattr(np, "asarray", array)
    for name in ("device_get", "block_until_ready"):
        monkeypatch.setattr(jax, name, waits(getattr(jax, name)))
    late.clear()
    run.fit()
    run.predict("test")
    assert len(stopped["train"]) >= 2
    assert len(stopped["evaluate"]) == 3
    assert {*stopped["train"], *stopped["evaluate"]} == {0}


def test_clocks_never_run_together(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 6.0, 10.0, 13.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(now))
    clocks = clock.Clocks()
    with clocks.measure("train"), clocks.measure("compile"):
        pass
    assert clocks.seconds == {"compile": 3.0, "train": 3.0, "evaluate": 0.0}
    assert clocks.lap() == {
        "compile_seconds": 3.0, "train_seconds": 3.0, "evaluate_seconds": 0.0,
        "compile_total": 3.0, "train_total": 3.0, "evaluate_total": 0.0,
    }  # fmt: skip
    with clocks.measure("train"):
        pass
    facts = clocks.facts()
    assert clocks.lap()["train_seconds"] == 3.0
    later = clock.Clocks({"train": 0.5})
    later.restore(facts)
    assert later.lap() == {
        "compile_seconds": 0.0, "train_seconds": 3.5, "evaluate_seconds": 0.0,
        "compile_total": 3.0, "train_total": 6.5, "evaluate_total": 0.0,
    }  # fmt: skip


def test_a_program_is_compiled_once_for_each_set_of_shapes():
    program = clock.Compiled(lambda x: x + 1, clock.Clocks())
    for x in (np.zeros(2), np.ones(2), np.zeros(3), np.zeros(2)):
        np.testing.assert_array_equal(program(x), x + 1)
    assert program.compilations == 2


def test_one_program_trains_however_the_rates_change(make):
    run = make(optimizer=optim.sgd(optim.cosine(0.1, warmup=1)), epochs=2).fit()
    run.fit(4)
    assert run.engine.compilations() == 1


@pytest.mark.parametrize("optimizer", [optim.adamw(0.02), optim.muon(0.1)], ids=lambda o: o.name)
def test_other_optimizers_lower_the_loss(make, optimizer):
    run = make(serial(dense(16), relu(), dense(10)), optimizer=optimizer, epochs=4).fit()
    losses = run.record.column("train_loss")
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_says_what_it_is(make, tmp_path):
    run = make(folder=tmp_path, epochs=1)
    assert repr(run) == f"Run of digits in {tmp_path}: new, epoch 0.0 of 1"
    run.fit()
    accuracy = 100 * run.history[0]["test_accuracy"]
    assert repr(run) == f"Run of digits in {tmp_path}: done, epoch 1.0 of 1, test {accuracy:.2f} %"


def test_a_run_holds_nothing_that_keeps_it_from_going(digits):
    import gc
    import weakref

    run = Run(tiny_net(), digits, batch=64, epochs=1, watch=Quiet()).fit()
    gone = weakref.ref(run.standing)
    gc.disable()
    try:
        del run
        assert gone() is None
    finally:
        gc.enable()
