"""What is trained: the network, its loss and its input, as pure functions of arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit import losses
from cnnkit.augment import Augment
from cnnkit.layers import Layer, map_weights
from cnnkit.train.optim import Optimizer

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class Sums(NamedTuple):
    """Totals over examples, each a float32 scalar: their losses, right answers, and how many they are."""

    loss: jax.Array
    correct: jax.Array
    examples: jax.Array

    @staticmethod
    def zero() -> "Sums":
        return Sums(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


class Model(NamedTuple):
    """What a step changes: parameters, batch-norm statistics, and the optimizer's state."""

    params: Any
    state: Any
    opt: Any


@dataclass(frozen=True, eq=False)
class Task:
    """Everything a step depends on besides arrays.

    Args:
        net: the network.
        optimizer: how parameters follow gradients.
        augment: what training images go through, or None.
        loss: ``loss(logits, labels) -> [B]`` losses of the examples.
        mean, std: float32 [C]; images become (pixel/255 − mean)/std after augmentation.
        dtype: what the network computes in; parameters and sums stay float32.
    """

    net: Layer
    optimizer: Optimizer
    augment: Augment | None
    loss: Callable[[jax.Array, jax.Array], jax.Array]
    mean: np.ndarray
    std: np.ndarray
    dtype: Any = jnp.float32

    def init(self, key: jax.Array, shape: tuple[int, ...]) -> Model:
        """A fresh model for images of this shape (before augmentation)."""
        shape = self.augment.out_shape(shape) if self.augment else shape
        params, state, _ = self.net.init(key, shape)
        return Model(params, state, self.optimizer.init(params))

    def inputs(self, images: jax.Array, key: jax.Array | None) -> jax.Array:
        """Network input from uint8 images [B, H, W, C]: augmented given a key, else as evaluation sees them."""
        x = images.astype(jnp.float32) / 255
        if self.augment is not None:
            x = self.augment.test(x) if key is None else self.augment(key, x)
        return ((x - self.mean) / self.std).astype(self.dtype)

    def logits(self, params: Any, state: Any, x: jax.Array, key: jax.Array | None, train: bool) -> Any:
        """(logits float32 [B, classes], new state); weights are cast to the computing dtype."""
        params = jax.tree.map(lambda w: w.astype(self.dtype), params)
        y, state = self.net.apply(params, state, x, key=key, train=train)
        return y.astype(jnp.float32), state

    def gradient(
        self, model: Model, images: jax.Array, labels: jax.Array, weight: jax.Array, key: jax.Array
    ) -> tuple[Any, Any, Sums]:
        """Gradient of the *sum* of the weighted losses, new state, and sums over one mini-batch.

        Args:
            model: at which parameters.
            images: uint8 [B, H, W, C].
            labels: int32 [B].
            weight: float32 [B], 0 for padding.
            key: of this mini-batch.
        """
        augment_key, net_key = jax.random.split(key)
        x = self.inputs(images, augment_key)

        def objective(params):
            logits, state = self.logits(params, model.state, x, net_key, train=True)
            loss = (self.loss(logits, labels) * weight).sum()
            return loss, (state, losses.correct(logits, labels, weight).sum())

        (loss, (state, correct)), grads = jax.value_and_grad(objective, has_aux=True)(model.params)
        return grads, state, Sums(loss, correct, weight.sum())

    def descend(self, model: Model, grads: Any, examples: jax.Array, lr: Any, momentum: Any) -> Model:
        """One optimizer step with a summed gradient over so many examples, plus each layer's L2 decay."""
        count = jnp.maximum(examples, 1)

        def total(path, layer, name, pair):
            grad, weight = pair
            grad = grad / count
            return grad + layer.decay * weight if layer.decay and name == "w" else grad

        grads = map_weights(total, self.net, _pairs(grads, model.params))
        params, opt = self.optimizer.update(grads, model.opt, model.params, lr, momentum)
        if any(layer.lr != 1.0 for layer in _leaves(self.net)):
            moved = lambda path, layer, name, pair: pair[0] + layer.lr * (pair[1] - pair[0])
            params = map_weights(moved, self.net, _pairs(model.params, params))
        return Model(params, model.state, opt)


class _Pair(tuple):
    """Two values of one weight, held together as a leaf."""


def _pairs(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: _Pair((x, y)), a, b)


def _leaves(net: Layer) -> list[Layer]:
    return [leaf for part in net.parts for leaf in _leaves(part)] if net.parts else [net]


def step_key(key: jax.Array, index: Any) -> jax.Array:
    """The key of the epoch's mini-batch with this index; whoever computes it, it is the same."""
    return jax.random.fold_in(key, index)


def epoch_key(seed: int, epoch: int) -> jax.Array:
    """The key of an epoch: a function of (seed, epoch) alone."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), epoch)


def init_key(seed: int) -> jax.Array:
    """The key that parameters are drawn from."""
    return jax.random.fold_in(jax.random.key(seed), 0)
