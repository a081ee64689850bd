import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.graph import Scheduler, analyse, estimate, evaluate, from_function, measure


def agree(function, *args, exact=True, **options):
    """The graph's result by the scheduler, beside the function's own; the graph is returned."""
    graph = from_function(function, *args, **options)
    with Scheduler({"compute": 2}) as scheduler:
        got = graph.result(scheduler.run(graph, graph.feeds(*args), timeout=60))
    want = function(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        np.testing.assert_allclose(g, w, rtol=0 if exact else 1e-6)
        assert jnp.asarray(g).dtype == jnp.asarray(w).dtype
    return graph


X = jnp.arange(6.0, dtype=jnp.float32).reshape(2, 3)
W = jnp.ones((3, 4), jnp.float32)


def test_operations_blobs_and_inputs_of_a_function():
    graph = agree(
        lambda x, p: jnp.tanh(x @ p["w"] + p["b"]).sum(), X, {"b": jnp.ones(4), "w": W}, open="nothing"
    )
    assert graph.inputs == ("x", "p['b']", "p['w']")
    assert graph.blobs["p['w']"].shape == (3, 4)
    assert graph.blobs["p['w']"].dtype == "float32"
    assert graph.ops["dot_general"].inputs == ("x", "p['w']")
    assert graph.ops["dot_general"].flops == 2 * 2 * 3 * 4
    assert str(graph.ops["tanh"].on) == "compute"


def test_two_branches_may_run_at_once():
    graph = from_function(lambda x: jnp.sin(x) + jnp.cos(x), X)
    found = analyse(graph)
    assert found.together("sin", "cos")
    assert found.width == 2


def test_calls_are_opened_or_folded():
    @jax.jit
    def inner(a):
        return jnp.sin(a) * 2

    @jax.custom_vjp
    def own(a):
        return a * 3

    own.defvjp(lambda a: (own(a), None), lambda _, g: (g * 3,))
    function = lambda x: jax.checkpoint(lambda a: a - 1)(jax.nn.relu(own(inner(inner(x)))))
    folded = agree(function, X, open="nothing")
    assert [op.kind for op in folded.ops.values()][:3] == ["jit", "jit", "custom_vjp_call"]
    assert list(folded.ops)[:2] == ["inner", "inner.2"]
    opened = agree(function, X, open="calls")
    assert [op.kind for op in opened.ops.values()] == ["sin", "mul", "sin", "mul", "mul", "max", "sub"]
    assert "inner.2/sin" in opened.ops


def scans(x):
    def body(carry, row):
        carry = carry * 0.5 + row.sum()
        return carry, (carry, row * 2)

    total, (each, rows) = jax.lax.scan(body, 1.0, x, reverse=True)
    count, _ = jax.lax.scan(lambda c, _: (c + total, None), 0.0, None, length=3)
    return total, each, rows, count


def test_a_scan_is_unrolled_or_folded():
    folded = agree(scans, X, open="calls")
    assert [op.kind for op in folded.ops.values()].count("scan") == 2
    opened = agree(scans, X, open="all", exact=False)
    kinds = [op.kind for op in opened.ops.values()]
    assert "scan" not in kinds
    assert kinds.count("reduce_sum") == 2
    assert kinds.count("slice") == 2
    assert kinds.count("stack") == 2
    short = from_function(scans, X, open="all", unroll=2)
    assert [op.kind for op in short.ops.values()].count("scan") == 1


def test_a_cond_is_opened_or_folded():
    function = lambda x: jax.lax.cond(x.sum() > 1, lambda a: (jnp.sin(a), a), lambda a: (jnp.cos(a), -a), x)
    for x in (X, -X):
        assert "cond" in [op.kind for op in agree(function, x).ops.values()]
        opened = agree(function, x, open="all")
        kinds = [op.kind for op in opened.ops.values()]
        assert kinds.count("choose") == 2
        assert "cond" not in kinds
        assert analyse(opened).together("cond[0]/cos", "cond[1]/sin")


def test_a_while_loop_stays_one_operation():
    function = lambda x: jax.lax.while_loop(lambda a: a.sum() < 100, lambda a: a * 2, x + 1)
    assert [op.kind for op in agree(function, X, open="all").ops.values()] == ["add", "while"]


def test_a_gradient_of_a_convolution():
    def loss(w, x):
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.square(jax.nn.relu(y)).mean()

    w = jax.random.normal(jax.random.key(0), (3, 3, 2, 4))
    x = jax.random.normal(jax.random.key(1), (2, 5, 5, 2))
    graph = agree(jax.value_and_grad(loss), w, x, exact=False)
    flops = [op.flops for op in graph.ops.values() if op.kind == "conv_general_dilated"]
    assert flops[0] == 2 * (2 * 5 * 5 * 4) * (3 * 3 * 2)


def test_random_keys_constants_and_what_is_passed_through():
    table = np.arange(3, dtype=np.float32)

    def function(x, key):
        return x, 2.0, jax.random.normal(key, (3,)) + table, x

    graph = agree(function, X, jax.random.key(0))
    assert graph.blobs["key"].dtype.startswith("key<")
    assert graph.outputs[0] == graph.outputs[3] == "x"


def test_arguments_named_like_operations():
    agree(lambda sin, *rest: jnp.sin(sin) + rest[0], X, X)


def test_shapes_alone_are_enough_to_trace():
    graph = from_function(jax.jit(lambda x: x @ x.T), jax.ShapeDtypeStruct((8, 4), "float32"), name="gram")
    assert graph.name == "gram"
    x = jnp.ones((8, 4))
    assert graph.result(evaluate(graph, graph.feeds(x))).tolist() == [[4.0] * 8] * 8


def test_wrong_arguments():
    with pytest.raises(ValueError, match="unknown kind of equations to open 'al': did you mean 'all'"):
        from_function(jnp.sin, X, open="al")
    graph = from_function(jnp.sin, X)
    with pytest.raises(ValueError, match="sin was traced with 1 arrays in its arguments, got 2"):
        graph.feeds(X, X)


def test_estimates_by_hand():
    graph = from_function(lambda x, w: jnp.exp(x @ w), jnp.ones((64, 512)), jnp.ones((512, 256)))
    costs = estimate(graph, flops=1e9, memory=1e8, dispatch=0)
    assert costs["dot_general"] == max(2 * 64 * 512 * 256 / 1e9, 4 * (64 * 512 + 512 * 256 + 64 * 256) / 1e8)
    assert costs["exp"] == 4 * 2 * 64 * 256 / 1e8
    estimated = analyse(graph, costs)
    assert estimated.critical == costs["dot_general"] + costs["exp"]


def test_measured_costs_find_the_slow_operation():
    a = jnp.ones((300, 300))
    graph = from_function(lambda a: (a @ a @ a).sum() + a[0, 0], a)
    costs = measure(graph, graph.feeds(a), repeats=2)
    assert set(costs) == set(graph.ops)
    assert costs["dot_general"] > costs["add"]
    assert set(analyse(graph, costs).critical_path) >= {"dot_general", "dot_general.2", "reduce_sum"}
