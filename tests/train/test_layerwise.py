"""Training layer by layer: the numbers of synchronous SGD, and what may hide behind what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.graph import analyse
from cnnkit.layers import dense, serial
from cnnkit.parallel import workers
from cnnkit.parallel.emulate import emulate
from cnnkit.train import apart, loop, optim
from cnnkit.train.apart import turns
from cnnkit.train.layerwise import Layerwise, share
from cnnkit.train.step import Source
from tests.train.conftest import flat, small_net


@pytest.fixture(scope="module")
def source(digits):
    return Source(*map(np.asarray, digits.train))


@pytest.fixture
def layerwise(make, digits):
    """A run in rounds of one step, and the same layer by layer."""

    def layerwise(net=None, **settings):
        run = make(net or small_net(), mode="accumulate", optimizer=optim.sgd(0.1), epochs=2)
        return run, Layerwise(run.task, run.model, digits.shape, run.batch, workers.make(1), **settings)

    return layerwise


def test_it_gives_the_numbers_of_synchronous_training_with_overlap_and_without(layerwise, source):
    run, one = layerwise(piece=300)
    with one:
        losses = list(one.steps(share(source, loop.lay_out(run, 0), one.team)))
        # In another order of exchanges, one after the other, from where the model stands.
        before = [name for name, op in one.graph.ops.items() if op.kind == "exchange"]
        one.costs = dict.fromkeys(one.graph.ops, 1.0)
        one.place(one.model)
        one.slowed(0.0)
        one.overlap = False
        losses += list(one.steps(share(source, loop.lay_out(run, 1), one.team)))
        after = [name for name, op in one.graph.ops.items() if op.kind == "exchange"]
        model = one.model
    run.fit()
    assert sorted(before) == sorted(after)
    assert before != after
    assert len(losses) == 2 * 7
    np.testing.assert_allclose(
        flat((model.params, model.state)), flat((run.params, run.state)), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(flat(model.opt), flat(run.model.opt), rtol=1e-3, atol=1e-5)
    assert np.mean(losses[7:]) == pytest.approx(run.history[1]["train_loss"], rel=0.02)
    assert {e.resource for e in one.timeline} == {"compute", "network"}


def test_what_is_there_is_exchanged_while_earlier_layers_go_backward(layerwise):
    _, one = layerwise(serial(dense(6), dense(5), dense(10)), piece=0)
    graph = one.graph
    found = analyse(graph, dict.fromkeys(graph.ops, 1.0))
    last, first = "2 dense 10.w exchange 0", "0 dense 6.w exchange 0"
    assert found.together(last, "0 dense 6 backward")
    assert not found.together(first, "0 dense 6 backward")
    # The next step's first layer waits for its own parameters alone.
    assert one._carried["0 dense 6.w"] == "0 dense 6.w after"
    assert set(graph.before("0 dense 6.w update")) == {first}


def test_large_parameters_travel_in_pieces_and_let_the_first_layers_go_before(layerwise):
    _, one = layerwise(serial(dense(3), dense(40), dense(10)), piece=100)
    pieces = [name for name in one.graph.ops if name.startswith("2 dense 10.w exchange")]
    assert [one.graph.blobs[one.graph.ops[name].outputs[0]].shape for name in pieces] == [(1, 100)] * 4
    ready = {"first": 2.5, "last 0": 0.0, "last 1": 0.0, "last 2": 0.0}
    assert turns(ready, dict.fromkeys(ready, 1.0)) == ["last 0", "last 1", "last 2", "first"]
    assert turns(ready, dict.fromkeys(ready, 2.0)) == ["last 0", "last 1", "first", "last 2"]


def test_a_worker_without_a_mini_batch_is_given_one_that_counts_for_nothing(make, source):
    plan = loop.lay_out(make(), 0)
    team = type("Team", (), {"count": 3, "local": (2,)})()
    own = list(share(source, plan, team))
    assert len(own) == 3  # 7 mini-batches for 3 workers
    assert [int(batch.weight.sum()) for batch, *_ in own] == [32, 32, 0]
    np.testing.assert_array_equal(own[1][0].index, plan.index[5])
    assert own[1][1] == plan.lr[3]


@pytest.mark.parametrize("optimizer", [optim.sgd(), optim.adamw(), optim.muon()], ids=lambda o: o.name)
def test_an_optimizer_by_parameter_does_what_it_does_to_all(optimizer):
    draw = np.random.default_rng(0)
    params = (
        {"b": draw.normal(size=3), "w": draw.normal(size=(4, 3))},
        (),
        ({"w": draw.normal(size=(3, 2))},),
    )
    params = jax.tree.map(jnp.float32, params)
    gradient = jax.tree.map(lambda w: w + 1, params)
    step = jax.jit(lambda g, s, w: optimizer.update(g, s, w, 0.1, 0.9))
    whole, state = step(gradient, optimizer.init(params), params)
    whole, state = step(gradient, state, whole)
    states = apart.split(optimizer, params, optimizer.init(params))
    made = []
    for weight, g, own in zip(jax.tree.leaves(params), jax.tree.leaves(gradient), states, strict=True):
        weight, own = step(g, own, weight)
        made.append(step(g, own, weight))
    np.testing.assert_allclose(flat([w for w, _ in made]), flat(whole), rtol=1e-5)
    together = apart.join(optimizer, params, [own for _, own in made], state)
    assert jax.tree.structure(together) == jax.tree.structure(state)
    np.testing.assert_allclose(flat(together), flat(state), rtol=1e-5)


def test_what_does_not_go_together_is_said(layerwise, make, digits):
    run = make()
    make_one = lambda *a, **k: Layerwise(run.task, run.model, digits.shape, 32, *a, **k)
    with pytest.raises(
        ValueError, match="one worker in each process, and this process has 2: start a process"
    ):
        make_one(workers.make(2))
    with pytest.raises(ValueError, match="did you mean 'ring'"):
        make_one(workers.make(1), how="rin")
    with pytest.raises(ValueError, match="piece is -1; it must be a number of floats, or 0"):
        make_one(workers.make(1), piece=-1)
    with pytest.raises(ValueError, match="made slower by waiting only"):
        make_one(workers.make(1), emulated=emulate([0.5]))
    half = make(dtype="bfloat16")
    with pytest.raises(ValueError, match="computes in float32, not bfloat16"):
        Layerwise(half.task, half.model, digits.shape, 32, workers.make(1))


def test_waiting_is_shared_out_by_flops(layerwise):
    slow = emulate([0.25], waits=True, step_seconds=0.02)
    _, one = layerwise(serial(dense(30), dense(10)), emulated=slow)
    assert one.waiting == pytest.approx(0.06)
