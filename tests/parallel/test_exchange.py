"""Exchanges: every algorithm and payload gives the sum, and sends the bytes that it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from cnnkit.parallel.exchange import (
    ALGORITHMS,
    exchange,
    no_error,
    tree_levels,
    weighted_mean,
)
from cnnkit.parallel.means import mean_of_sums
from cnnkit.parallel.payload import PAYLOADS
from cnnkit.parallel.traffic import collectives, collectives_in_loops, sent_bytes

HOWS = sorted(ALGORITHMS)
SHAPES = {"w": (5, 3, 2), "b": (7,), "scalar": ()}


def on_workers(function, workers):
    """The function on each worker's part: arguments and results carry a leading axis of W."""
    mesh = Mesh(np.array(jax.devices()[:workers]), ("worker",), axis_types=(AxisType.Auto,))

    def inner(*args):
        out = function(*jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: x[None], out)

    return jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=P("worker"), out_specs=P("worker")))


def numbers(workers, seed=0, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(workers, *shape)).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("how", HOWS)
def test_sum_is_the_sum_and_the_same_everywhere(how, workers):
    x = numbers(workers)
    out = on_workers(lambda t: exchange(t, "worker", how)[0], workers)(x)
    for name, values in x.items():
        got = np.asarray(out[name])
        np.testing.assert_allclose(got[0], values.astype(np.float64).sum(0), rtol=0, atol=2e-6)
        assert all(np.array_equal(got[0], got[i]) for i in range(workers))


@pytest.mark.parametrize("how", HOWS)
def test_dtypes_come_back_and_integers_are_exact(how):
    big = 2**24 + 1  # float32 cannot hold it
    x = {
        "int": np.full((4, 3), big, np.int32),
        "half": np.ones((4, 2), jnp.bfloat16),
        "float": np.ones((4, 1), np.float32),
    }
    out = on_workers(lambda t: exchange(t, "worker", how, "int8")[0], 4)(x)
    assert {name: leaf.dtype.name for name, leaf in out.items()} == {
        "int": "int32",
        "half": "bfloat16",
        "float": "float32",
    }
    assert np.asarray(out["int"]).tolist() == [[4 * big] * 3] * 4
    assert np.asarray(out["half"], np.float32).tolist() == [[4.0, 4.0]] * 4


@pytest.mark.parametrize(("payload", "error"), [("bfloat16", 2**-8), ("int8", 1 / 254)])
@pytest.mark.parametrize("how", HOWS)
def test_feedback_loses_nothing(how, payload, error):
    """Σ results = Σ true sums − Σ residuals, to float32 rounding, and the residuals stay small."""
    workers, rounds = 4, 3
    step = on_workers(lambda t, e: exchange(t, "worker", how, payload, e), workers)
    left = jax.tree.map(lambda leaf: jnp.zeros_like(leaf), numbers(workers))
    given = dict.fromkeys(SHAPES, 0.0)
    received = dict.fromkeys(SHAPES, 0.0)
    largest = 0.0
    for r in range(rounds):
        x = numbers(workers, seed=r)
        out, left = step(x, left)
        for name in SHAPES:
            got = np.asarray(out[name], np.float64)
            assert all(np.array_equal(got[0], got[i]) for i in range(workers))
            given[name] = given[name] + x[name].astype(np.float64).sum(0)
            received[name] = received[name] + got[0]
            largest = max(largest, np.abs(x[name]).max())
    for name in SHAPES:
        residual = np.asarray(left[name], np.float64)
        np.testing.assert_allclose(received[name], given[name] - residual.sum(0), rtol=0, atol=1e-5)
        # A message carries at most W values and their residuals.
        assert np.abs(residual).max() < 1.1 * error * workers * largest
    assert max(np.abs(np.asarray(left[name])).max() for name in SHAPES) > 1e-4


@pytest.mark.parametrize(
    ("how", "result", "left"),
    [
        # Worker 0 has 3.4 in a block of scale 1, worker 1 has 6.3; the sum's block has scale 2.
        ("redundant", 9, (0.4, 0.3)),  # 3 + 6
        ("server", 10, (-0.6, 0.3)),  # worker 1 sends 6; worker 0 sends 9.4 as 2 · 5
        ("tree", 10, (-0.6, 0.3)),  # the same for two workers
        ("psum", 10, (-0.6, 0.3)),  # worker 0 sums the first segment
        ("ring", 10, (0.4, -0.7)),  # worker 0 sends 3; worker 1 sends 9.3 as 2 · 5
    ],
)
def test_who_rounds_what(how, result, left):
    x = np.zeros((2, 512), np.float32)
    x[:, 0] = 127
    x[:, 1] = 3.4, 6.3
    out, residual = on_workers(lambda t, e: exchange(t, "worker", how, "int8", e), 2)(x, np.zeros_like(x))
    assert np.asarray(out)[:, :2].tolist() == [[254, result]] * 2
    np.testing.assert_allclose(np.asarray(residual)[:, 1], left, atol=1e-6)


@pytest.mark.parametrize("payload", sorted(PAYLOADS))
@pytest.mark.parametrize("how", HOWS)
def test_nan_is_not_lost(how, payload):
    x = np.ones((3, 5), np.float32)
    x[1, 2] = np.nan
    out = np.asarray(on_workers(lambda t: exchange(t, "worker", how, payload)[0], 3)(x))
    assert np.isnan(out[:, 2]).all()


@pytest.mark.parametrize("payload", sorted(PAYLOADS))
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_bytes_are_those_of_the_traced_collectives(how, payload, workers):
    n = 1000
    found = collectives(
        on_workers(lambda t: exchange(t, "worker", how, payload)[0], workers),
        jax.ShapeDtypeStruct((workers, n), jnp.float32),
    )
    sent, received = np.zeros(workers), np.zeros(workers)
    for name, _, eqn in found:
        aval = eqn.invars[0].aval
        size = aval.size * aval.dtype.itemsize
        if name == "ppermute":
            for source, target in eqn.params["perm"]:
                sent[source] += size
                received[target] += size
        else:
            kind = name.split("_invariant")[0]
            share = {"psum": 2 / workers, "all_to_all": 1 / workers, "all_gather": 1.0}[kind]
            sent += share * (workers - 1) * size
            received += share * (workers - 1) * size
    traffic = sent_bytes(n, workers, how, payload)
    assert list(traffic.sent) == sent.tolist()
    assert list(traffic.received) == received.tolist()
    assert traffic.busiest == max(*sent, *received)
    assert traffic.total == sent.sum()
    if {name for name, _, _ in found} == {"ppermute"}:
        assert traffic.hops == len(found)
        sizes = [eqn.invars[0].aval.size * eqn.invars[0].aval.dtype.itemsize for _, _, eqn in found]
        assert traffic.serial == sum(sizes)


def test_bytes_by_hand():
    assert sent_bytes(10, 1, "ring").busiest == 0
    # 1,000 values to 4 workers in int8: 4 segments of 256, each 256 + 4 bytes.
    assert sent_bytes(1000, 4, "ring", "int8").sent == (6 * 260,) * 4
    tree = sent_bytes(100, 6, "tree")
    assert [b // 408 for b in tree.sent] == [3, 1, 2, 1, 2, 1]  # 102 values of 4 bytes, to each neighbour
    assert tree.hops == 6
    assert tree_levels(1) == []
    assert tree_levels(8) == [[(1, 0), (3, 2), (5, 4), (7, 6)], [(2, 0), (6, 4)], [(4, 0)]]


@pytest.mark.parametrize(
    ("how", "payload"), [("psum", "float32"), ("ring", "float32"), ("redundant", "int8")]
)
def test_weighted_mean(how, payload):
    x = numbers(3)
    weight = np.array([1, 0, 4], np.float32)

    def mean(t, n):
        out, total, error = weighted_mean(t, n, "worker", how, payload, no_error(t))
        return out, total, error

    out, total, _ = on_workers(mean, 3)(x, weight)
    assert np.asarray(total).tolist() == [5, 5, 5]
    for name, values in x.items():
        wanted = np.tensordot(weight / 5, values.astype(np.float64), 1)
        # A block of int8 spans leaves, so the largest value of all sets the step.
        largest = max(np.abs(leaf).max() for leaf in x.values())
        tolerance = 1e-6 if payload == "float32" else largest / 127
        np.testing.assert_allclose(np.asarray(out[name])[0], wanted, atol=tolerance)


def test_weighted_mean_in_float32_is_one_message():
    def mean(t, n):
        return weighted_mean(t, n, "worker")[0]

    assert len(collectives(on_workers(mean, 4), numbers(4), np.ones(4, np.float32))) == 1


def test_means_of_sums_and_of_what_counts_by_the_same_weight_come_by_one_message():
    sums, others = numbers(3), numbers(3, seed=1, shapes={"mean": (4,), "none": (0,)})
    sums["w"][1], others["mean"][1] = np.nan, np.inf  # of weight 0: whatever it has, it does not count
    weight = np.float32([30, 0, 10])
    trees = on_workers(lambda s, x, n: mean_of_sums(s, x, n, "worker"), 3)
    got_sums, got_others, total = trees(sums, others, weight)
    assert total.tolist() == [40] * 3
    for name, values in sums.items():
        np.testing.assert_allclose(got_sums[name][2], (values[0] + values[2]) / 40, atol=1e-6)
    np.testing.assert_allclose(got_others["mean"][0], others["mean"][[0, 2]].T @ [0.75, 0.25], atol=1e-6)
    nobody = trees(sums, others, np.zeros(3, np.float32))
    assert all(np.array_equal(leaf, np.zeros_like(leaf)) for leaf in jax.tree.leaves(nobody))
    assert len(collectives(trees, sums, others, weight)) == 1
    # In several, whose numbers are the same: "w" is the last leaf and the largest, and is on its way first.
    several = on_workers(lambda s, x, n: mean_of_sums(s, x, n, "worker", messages=2), 3)
    jax.tree.map(np.testing.assert_array_equal, several(sums, others, weight), trees(sums, others, weight))
    sent = [eqn.invars[0].aval.size for _, _, eqn in collectives(several, sums, others, weight)]
    assert sent == [30 + 4 + 1 + 1, 7 + 1 + 1]  # with the weight, in whole numbers of the workers


def test_under_pmap_the_numbers_are_the_same():
    x = numbers(4)["w"]
    mapped = jax.pmap(lambda t: exchange(t, "worker", "ring")[0], axis_name="worker")(x)
    shared = on_workers(lambda t: exchange(t, "worker", "ring")[0], 4)(x)
    assert np.array_equal(np.asarray(mapped), np.asarray(shared))


def test_replicated_values_can_be_exchanged():
    mesh = Mesh(np.array(jax.devices()[:4]), ("worker",), axis_types=(AxisType.Auto,))
    for how in HOWS:
        summed = jax.shard_map(
            lambda t, how=how: exchange(t, "worker", how)[0], mesh=mesh, in_specs=P(), out_specs=P("worker")
        )
        assert np.asarray(jax.jit(summed)(jnp.ones(3))).tolist() == [4.0] * 12


def test_gradient_of_replicated_parameters_in_a_loop_is_found():
    """The trap: with replicated parameters JAX sums the gradient over the workers in every step."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("worker",), axis_types=(AxisType.Auto,))

    def local_steps(w, x, cast):
        w = jax.lax.pcast(w, "worker", to="varying") if cast else w
        grad = jax.grad(lambda w: jnp.sum(w * x))
        total = jax.lax.pcast(jnp.zeros(3), "worker", to="varying")
        return jax.lax.fori_loop(0, 4, lambda i, total: total + grad(w), total)

    def found(cast):
        fn = jax.shard_map(
            lambda w, x: local_steps(w, x, cast),
            mesh=mesh,
            in_specs=(P(), P("worker")),
            out_specs=P("worker"),
        )
        return collectives_in_loops(fn, jnp.ones(3), jnp.ones(6))

    assert found(cast=True) == []
    (only,) = found(cast=False)
    assert only.startswith("psum")
    assert only.endswith("in shard_map/scan")


def test_a_collective_after_a_loop_is_no_collective_in_it():
    def fn(x):
        x = jax.lax.while_loop(lambda x: x.sum() < 3, lambda x: x + 1, x)
        return exchange(x, "worker", "ring")[0]

    assert collectives_in_loops(on_workers(fn, 4), jnp.zeros((4, 3))) == []
    assert len(collectives(on_workers(fn, 4), jnp.zeros((4, 3)))) == 6


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match=r"unknown exchange 'rnig': did you mean 'ring'\? Known: psum, "):
        sent_bytes(1, 2, "rnig")
    with pytest.raises(ValueError, match=r"unknown payload 'int4': did you mean 'int8'\?"):
        sent_bytes(1, 2, "ring", "int4")
    with pytest.raises(ValueError, match="unknown exchange 'rnig'"):
        on_workers(lambda t: exchange(t, "worker", "rnig")[0], 2)(np.ones((2, 1), np.float32))


def test_other_dtypes_are_errors():
    with pytest.raises(TypeError, match="sums floating and integer arrays; leaf 0 of the tree is bool"):
        on_workers(lambda t: exchange(t, "worker")[0], 2)(np.ones((2, 1), bool))
