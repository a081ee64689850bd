import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.graph import Scheduler, analyse, estimate, from_net, simulate
from cnnkit.layers import branch, conv, dense, dropout, max_pool, relu, residual, serial
from cnnkit.losses import cross_entropy

SHAPE, BATCH = (8, 8, 2), 4


def mean_loss(y, labels):
    return cross_entropy(y, labels).mean()


def make(net, key=0):
    params, state, _ = net.init(jax.random.key(key), SHAPE)
    x = jax.random.normal(jax.random.key(1), (BATCH, *SHAPE))
    return params, state, x, jnp.arange(BATCH) % 3, jax.random.key(2)


def whole(net, params, state, x, labels, key):
    def f(p):
        y, made = net.apply(p, state, x, key=key, train=True)
        return mean_loss(y, labels), made

    (loss, made), gradients = jax.jit(jax.value_and_grad(f, has_aux=True))(params)
    return loss, gradients, made


def compare(net, **options):
    graph = from_net(net, SHAPE, BATCH, mean_loss, **options)
    with Scheduler() as scheduler:
        args = make(net)
        got = graph.result(scheduler.run(graph, graph.feeds(*args), timeout=60))
    want = whole(net, *args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-6), got, want)
    return graph


def test_a_chain_with_dropout_has_the_gradients_of_the_whole():
    net = serial(conv(4, 3), max_pool(2), dropout(0.5), relu(), dense(3))
    graph = compare(net)
    kinds = [op.kind for op in graph.ops.values() if not op.name.endswith("exchange")]
    assert kinds == [*(part.kind for part in net.parts), "loss", *["backward"] * 5]
    exchanges = [name for name, op in graph.ops.items() if op.on.kind == "network"]
    assert len(exchanges) == len(jax.tree.leaves(make(net)[0])) == 4


def test_branches_inside_branches_have_the_gradients_of_the_whole():
    inner = branch(serial(conv(2, 3, padding="same"), relu()), conv(2, 1), merge="sum")
    net = serial(
        conv(2, 3, padding="same"),
        branch(conv(3, 1), inner, serial(relu(), residual(conv(2, 1)))),
        dense(3),
    )
    graph = compare(net)
    found = analyse(graph)
    first, second, third = [
        next(name for name in graph.ops if f" / {i} " in name and name.endswith("forward")) for i in range(3)
    ]
    assert found.together(first, second)
    assert found.together(second, third)


def test_a_net_of_one_branch_without_a_layer_before():
    compare(serial(branch(conv(2, 3), conv(2, 3), merge="sum"), dense(3)))
    compare(serial(relu(), branch(serial(relu(), dense(2)), relu()), dense(3)))


def test_a_leaf_alone():
    compare(dense(3))


def test_gradients_are_exchanged_as_soon_as_they_exist():
    """Wait-free back-propagation: the last layer's exchange stands beside the first layer's backward."""
    net = serial(conv(4, 3), relu(), dense(5), relu(), dense(3))
    graph = from_net(net, SHAPE, BATCH, mean_loss)
    found = analyse(graph)
    backward = next(n for n in graph.ops if n.startswith("0 ") and n.endswith("backward"))
    exchanges = [n for n, op in graph.ops.items() if op.kind == "exchange"]
    assert [n.split()[0] for n in exchanges] == ["4", "4", "2", "2", "0", "0"]
    assert found.together(exchanges[0], backward)
    assert not found.together(exchanges[-1], backward)


def test_overlap_shortens_the_predicted_step():
    net = serial(conv(4, 3), relu(), dense(5), relu(), dense(3))
    graph = from_net(net, SHAPE, BATCH, mean_loss)
    costs = estimate(graph, network=1e6)
    line = simulate(graph, costs)
    spent = analyse(graph, costs).by_resource
    assert max(spent.values()) < line.seconds < sum(spent.values())


def test_exchange_and_update_are_applied_to_each_parameter():
    net = serial(dense(4), relu(), dense(3))
    graph = from_net(net, SHAPE, BATCH, mean_loss, exchange=lambda g: 2 * g, update=lambda w, g: w - 0.1 * g)
    args = make(net)
    with Scheduler() as scheduler:
        _, got, _ = graph.result(scheduler.run(graph, graph.feeds(*args), timeout=60))
    _, gradients, _ = whole(net, *args)
    want = jax.tree.map(lambda w, g: w - 0.2 * g, args[0], gradients)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-6), got, want)


def test_a_layers_backward_is_compiled_once():
    net = serial(dense(4), relu(), dense(3))
    graph, args = from_net(net, SHAPE, BATCH, mean_loss), make(net)
    with Scheduler() as scheduler:
        scheduler.run(graph, graph.feeds(*args))
        with jax.no_tracing():
            scheduler.run(graph, graph.feeds(*args))


def test_params_of_another_net_are_refused():
    graph = from_net(serial(dense(3)), SHAPE, BATCH, mean_loss)
    _, state, x, labels, key = make(serial(dense(3)))
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        graph.feeds((), state, x, labels, key)
