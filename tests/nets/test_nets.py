"""Networks: parameter counts as documented, and that they train."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit import losses, nets
from cnnkit.layers import outline, rebuild, summary

DOCUMENTED = {
    "alexnet": ((227, 227, 3), 1000, 60_965_224),
    "cuda_cnn_cifar10": ((24, 24, 3), 10, 5_077_898),
    "cuda_cnn_mnist": ((28, 28, 1), 10, 582_026),
    "fast94": ((32, 32, 3), 10, 1_971_352),
    "fast96": ((32, 32, 3), 10, 9_915_416),
    "googlenet": ((224, 224, 3), 1000, 6_998_552),
    "inception_cifar10": ((32, 32, 3), 10, 175_434),
    "lenet": ((28, 28, 1), 10, 431_080),
    "nin_cifar10": ((32, 32, 3), 10, 966_986),
    "resnet18": ((224, 224, 3), 1000, 11_689_512),
    "resnet18_cifar": ((32, 32, 3), 10, 11_173_962),
    "tiny": ((8, 8, 1), 10, 62_250),
    "unpooled": ((28, 28, 1), 10, 1_128_180),
    "vgg16": ((224, 224, 3), 1000, 138_357_544),
}


@pytest.mark.parametrize("name", nets.NAMES)
def test_parameters_are_as_many_as_documented(name):
    shape, classes, parameters = DOCUMENTED[name]
    net = nets.NAMES[name](classes)
    params, _, out = outline(net, shape)
    assert out == (classes,)
    assert sum(p.size for p in jax.tree.leaves(params)) == parameters


SMALL = {
    "lenet": (28, 28, 1),
    "cuda_cnn_cifar10": (24, 24, 3),
    "inception_cifar10": (16, 16, 3),
    "resnet18_cifar": (16, 16, 3),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_step_down_the_gradient_lowers_the_loss_by_its_length(name):
    net = nets.NAMES[name](10)
    params, state, _ = net.init(jax.random.key(0), SMALL[name])
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, *SMALL[name])), jnp.float32)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        logits, _ = net.apply(params, state, x, key=jax.random.key(1), train=True)
        return losses.cross_entropy(logits, jnp.arange(4)).sum()

    before, gradient = loss(params)
    size = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
    after, _ = loss(jax.tree.map(lambda p, g: p - 1e-3 / size * g, params, gradient))
    np.testing.assert_allclose(before - after, 1e-3 * size, rtol=0.1)


@pytest.mark.parametrize("name", nets.NAMES)
def test_every_network_is_built_again_from_its_description(name):
    net = nets.NAMES[name](10)
    again = rebuild(net.describe())
    assert again.describe() == net.describe()
    shape = DOCUMENTED[name][0]
    assert str(summary(again, shape)) == str(summary(net, shape))


def test_the_last_layer_of_nin_learns_at_a_tenth():
    last = nets.nin_cifar10().parts[7]
    assert (last.kind, last.lr, last.decay) == ("conv", 0.1, 1e-4)
    assert last.config["init"] == ("normal", 0.05)


def test_alexnet_splits_what_two_gpus_held():
    groups = [part.config["groups"] for part in nets.alexnet().parts if part.kind == "conv"]
    assert groups == [1, 2, 1, 2, 2]


def test_resnets_stem_is_chosen_by_name():
    shapes = {stem: outline(nets.resnet18(10, stem=stem), (32, 32, 3))[2] for stem in ("imagenet", "cifar")}
    assert shapes == {"imagenet": (10,), "cifar": (10,)}
    with pytest.raises(ValueError, match=re.escape("unknown stem 'cifra': did you mean 'cifar'?")):
        nets.resnet18(10, stem="cifra")


def test_stacks_of_three_kernel_sizes_end_in_ten_classes():
    sizes = {
        k: sum(p.size for p in jax.tree.leaves(outline(nets.unpooled(kernel=k), (28, 28, 1))[0]))
        for k in (3, 7)
    }
    assert sizes == {3: 1_124_180, 7: 2_291_972}
    small = outline(nets.unpooled(kernel=3, features=(4, 6)), (8, 8, 1))
    assert sum(p.size for p in jax.tree.leaves(small[0])) == 9 * 4 + 8 + 9 * 4 * 6 + 12 + 16 * 6 * 10 + 20
    with pytest.raises(ValueError, match="unknown kernel without features '4'"):
        nets.unpooled(kernel=4)
