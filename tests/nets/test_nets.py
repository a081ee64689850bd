"""Networks: parameter counts as documented, and that they compute."""

import jax
import jax.numpy as jnp

from cnnkit import nets


def count(net, shape):
    params, _, _ = jax.eval_shape(lambda key: (*net.init(key, shape)[:2], 0), jax.random.key(0))
    return sum(p.size for p in jax.tree.leaves(params))


def test_lenet_has_431080_parameters_and_ten_logits():
    net = nets.lenet()
    assert count(net, (28, 28, 1)) == 431_080
    params, state, shape = net.init(jax.random.key(0), (28, 28, 1))
    y, _ = net.apply(params, state, jnp.ones((2, 28, 28, 1)))
    assert y.shape == (2, *shape) == (2, 10)
