"""What is trained: the network, its loss and its input, as pure functions of arrays."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit import losses
from cnnkit.augment import Augment
from cnnkit.layers import Layer, measure
from cnnkit.layers.whiten import measures
from cnnkit.train.optim import Optimizer
from cnnkit.train.views import Views

SAMPLE = 5000  # training images that layers may take something from before the training

# What the network computes in, and how exactly products of float32 are taken where the hardware has a choice.
DTYPES: dict[str, tuple[Any, str | None]] = {
    "float32": (jnp.float32, "float32"),
    "tf32": (jnp.float32, "tensorfloat32"),
    "bfloat16": (jnp.bfloat16, None),
}


class Sums(NamedTuple):
    """Totals over examples, each a float32 scalar: their losses, right answers, and how many they are."""

    loss: Any
    correct: Any
    examples: Any

    @staticmethod
    def zero() -> "Sums":
        return Sums(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


class Model(NamedTuple):
    """What a step changes: parameters, batch-norm statistics, and the optimizer's state."""

    params: Any
    state: Any
    opt: Any


class MiniBatch(NamedTuple):
    """What one step learns from.

    Args:
        images: uint8 [B, H, W, C].
        labels: int32 [B].
        weight: float32 [B], 0 for padding.
        key: of this mini-batch.
        index: int32 [B], which examples these are.
        epoch: int32, from 0.
    """

    images: Any
    labels: Any
    weight: Any
    key: jax.Array
    index: Any
    epoch: Any


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
        precision: of its products of float32, as in ``jax.default_matmul_precision``; None leaves it to JAX.
        views: how evaluation looks at an image; None for once, as it is.
        freeze: (epoch, layers) pairs: from that epoch on so many of the first layers learn no more.
        frozen: how many of them learn no more now; `at` sets it.
    """

    net: Layer
    optimizer: Optimizer
    augment: Augment | None
    loss: Callable[[jax.Array, jax.Array], jax.Array]
    mean: np.ndarray
    std: np.ndarray
    dtype: Any = jnp.float32
    precision: str | None = None
    views: Views | None = None
    freeze: tuple[tuple[int, int], ...] = ()
    frozen: int = 0

    def at(self, epoch: int) -> "Task":
        """The task as it is in an epoch, from 0; one and the same for epochs in which nothing of it changes."""
        augment = self.augment and self.augment.at(epoch)
        frozen = max((layers for begin, layers in self.freeze if begin <= epoch), default=0)
        if augment is self.augment and frozen == self.frozen:
            return self
        return self._by_stage.setdefault((augment, frozen), replace(self, augment=augment, frozen=frozen))

    def before(self, epoch: int, position: int) -> "Task":
        """The task as it was in the last round before a mini-batch of an epoch, whose change may be on its way."""
        return self.at(epoch if position else max(epoch - 1, 0))

    @cached_property
    def _by_stage(self) -> dict[tuple[Augment | None, int], "Task"]:
        return {}

    def all_alike(self, who: str) -> "Task":
        """This task, if it is the same in all epochs.

        Raises:
            ValueError: layers are frozen on the way, which only a Run minds.
        """
        if self.freeze:
            raise ValueError(f"freeze={self.freeze} is for a Run; {who} has one program for all epochs")
        return self

    def init(self, key: jax.Array, shape: tuple[int, ...]) -> Model:
        """A fresh model for images of this shape (before augmentation)."""
        shape = self.augment.out_shape(shape) if self.augment else shape
        params, state, _ = self.net.init(key, shape)
        return Model(params, state, self.optimizer.init(params))

    def measured(self, model: Model, images: np.ndarray) -> Model:
        """The model with what its layers take from a sample of the training images uint8 [N, H, W, C]."""
        if not measures(self.net):
            return model
        x = self._normal(self._looked_at(jnp.asarray(images[:SAMPLE])))
        return model._replace(state=measure(self.net, model.params, model.state, x))

    def fresh(self, key: jax.Array, images: np.ndarray) -> Model:
        """A fresh model for training images uint8 [N, H, W, C], with what its layers take from them."""
        return self.measured(self.init(key, images.shape[1:]), images)

    def inputs(self, images: jax.Array) -> jax.Array:
        """Network input from uint8 images [B, H, W, C], as evaluation sees them."""
        return self._normal(self._looked_at(images)).astype(self.dtype)

    def augmented(self, batch: MiniBatch, key: jax.Array) -> jax.Array:
        """Network input from a mini-batch, as training sees it."""
        x = batch.images.astype(jnp.float32) / 255
        if self.augment is not None:
            x = self.augment(key, x, index=batch.index, epoch=batch.epoch)
        return self._normal(x).astype(self.dtype)

    def _looked_at(self, images: jax.Array) -> jax.Array:
        x = images.astype(jnp.float32) / 255
        return x if self.augment is None else self.augment.test(x)

    def _normal(self, x: jax.Array) -> jax.Array:
        return (x - self.mean) / self.std

    def logits(self, params: Any, state: Any, x: jax.Array, key: jax.Array | None, train: bool) -> Any:
        """(logits float32 [B, classes], new state); weights are cast to the computing dtype."""
        params = jax.tree.map(lambda w: w.astype(self.dtype), params)
        with self._precisely():
            y, state = self.net.apply(params, state, x, key=key, train=train)
        return y.astype(jnp.float32), state

    def _precisely(self) -> Any:
        # A CPU has one precision for float32, and by its name alone programs would differ.
        if self.precision is None or jax.default_backend() == "cpu":
            return contextlib.nullcontext()
        return jax.default_matmul_precision(self.precision)

    def gradient(self, model: Model, batch: MiniBatch) -> tuple[Any, Any, Sums]:
        """Gradient of the *sum* of the weighted losses, new state, and sums over one mini-batch."""
        augment_key, net_key = jax.random.split(batch.key)
        x = self.augmented(batch, augment_key)

        def objective(params):
            logits, state = self.logits(self._learning(params), model.state, x, net_key, train=True)
            loss = (self.loss(logits, batch.labels) * batch.weight).sum()
            return loss, (state, losses.correct(logits, batch.labels, batch.weight).sum())

        (loss, (state, correct)), grads = jax.value_and_grad(objective, has_aux=True)(model.params)
        return grads, state, Sums(loss, correct, batch.weight.sum())

    def _learning(self, params: Any) -> Any:
        if not self.frozen:
            return params
        return (*lax.stop_gradient(params[: self.frozen]), *params[self.frozen :])

    def descend(self, model: Model, grads: Any, examples: jax.Array, lr: Any, momentum: Any) -> Model:
        """One optimizer step with a summed gradient over so many examples, plus each layer's L2 decay."""
        count = jnp.maximum(examples, 1)

        def total(layer, name, grad, weight):
            return grad / count + layer.decay * weight if layer.decay and name == "w" else grad / count

        grads = _by_layer(total, self.net, grads, model.params)
        params, opt = self.optimizer.update(grads, model.opt, model.params, lr, momentum)
        moved = lambda layer, name, old, new: new if layer.lr == 1.0 else old + layer.lr * (new - old)
        params = _by_layer(moved, self.net, model.params, params)
        return Model(self.held(model.params, params), model.state, opt)

    def held(self, old: Any, new: Any) -> Any:
        """New parameters, with the old ones of the layers that learn no more: a momentum would move them on."""
        return (*old[: self.frozen], *new[self.frozen :]) if self.frozen else new


def _by_layer(function: Callable[..., Any], net: Layer, *trees: Any) -> Any:
    """function(layer, name of the weight in it, …) of weights that stand at the same place in trees like params."""
    if net.parts:
        return tuple(
            _by_layer(function, part, *parts) for part, *parts in zip(net.parts, *trees, strict=True)
        )
    name = lambda path: getattr(path[-1], "key", None) if path else None
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(net, name(path), *leaves), *trees)


def step_key(key: jax.Array, index: Any) -> jax.Array:
    """The key of the epoch's mini-batch with this index; whoever computes it, it is the same."""
    return jax.random.fold_in(key, index)


def epoch_key(seed: int, epoch: int) -> jax.Array:
    """The key of an epoch: a function of (seed, epoch) alone."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), epoch)


def init_key(seed: int) -> jax.Array:
    """The key that parameters are drawn from."""
    return jax.random.fold_in(jax.random.key(seed), 0)
