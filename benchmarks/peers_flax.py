"""The networks of the core benchmark in Flax NNX, and its training step."""

import inspect
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.peers_torch import LR, MEAN, MOMENTUM, STD
from cnnkit.layers.layer import Layer
from cnnkit.layers.window import resolve


class Built(nnx.Module):
    """A cnnkit network's layers in Flax, one for one, for images of shape (H, W, C).

    Args:
        layer: the network or a part of it.
        shape: of what it takes.
        rngs: where weights come from.
        kind: what it computes in; parameters are float32.
    """

    def __init__(self, layer: Layer, shape: tuple[int, ...], rngs: nnx.Rngs, kind: Any) -> None:
        from cnnkit.layers import outline

        self.kind, self.settings = layer.kind, dict(layer.config)
        s, parts, made = layer.config, [], None
        for part in layer.parts:
            parts.append(Built(part, shape, rngs, kind))
            if layer.kind == "serial":
                shape = outline(part, shape)[2]
        self.parts = getattr(nnx, "List", list)(parts)  # a plain list before Flax 0.11
        types = {"dtype": kind, "param_dtype": jnp.float32, "rngs": rngs}
        if layer.kind == "conv":
            made = nnx.Conv(
                shape[-1], s["features"], s["size"], strides=s["stride"], kernel_dilation=s["dilation"],
                padding=resolve(s["padding"], shape, s["size"], s["stride"], s["dilation"]),
                feature_group_count=s["groups"], use_bias=s["bias"], **types,
            )  # fmt: skip
        elif layer.kind == "dense":
            made = nnx.Linear(int(np.prod(shape)), s["features"], use_bias=s["bias"], **types)
        elif layer.kind == "batch_norm":
            made = nnx.BatchNorm(shape[-1], momentum=s["momentum"], epsilon=s["eps"], **types)
        elif layer.kind == "dropout":
            made = nnx.Dropout(s["rate"], rngs=rngs)
        elif layer.kind == "max_pool":
            self.pads = resolve(s["padding"], shape, s["size"], s["stride"])
        self.made = made

    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.settings
        if self.kind == "serial":
            for part in self.parts:
                x = part(x)
            return x
        if self.kind == "branch":
            return self._merged([part(x) for part in self.parts])
        if self.kind == "dense":
            return self.made(x.reshape(len(x), -1))
        if self.made is not None:
            return self.made(x)
        simple = {
            "relu": nnx.relu,
            "leaky_relu": lambda x: nnx.leaky_relu(x, s["slope"]),
            "identity": lambda x: x,
            "global_pool": lambda x: x.mean((1, 2)),
            "max_pool": lambda x: nnx.max_pool(x, s["size"], s["stride"], self.pads),
            "lrn": lambda x: x / (s["k"] + s["alpha"] * _window(x * x, s["size"])) ** s["beta"],
        }
        return simple[self.kind](x)

    def _merged(self, ys: list[jax.Array]) -> jax.Array:
        if self.settings["merge"] == "sum":
            return sum(ys[1:], start=ys[0])
        if len({y.shape[:-1] for y in ys}) > 1:
            ys = [y.reshape(len(y), -1) for y in ys]
        return jnp.concatenate(ys, -1)


def _window(x: jax.Array, size: int) -> jax.Array:
    zero = np.zeros((), x.dtype)
    return jax.lax.reduce_window(x, zero, jax.lax.add, (1, 1, 1, size), (1, 1, 1, 1), "SAME")


class Training:
    """Steps of SGD with momentum, a jitted call each, on mini-batches taken from images on the device.

    Args:
        name: of the network.
        images: uint8 [N, H, W, C].
        labels: [N].
        index: [steps, batch], which images a step takes.
        classes: number of outputs.
        half: computed in bfloat16.
    """

    def __init__(self, name: str, images, labels, index, classes: int = 10, half: bool = True) -> None:
        from cnnkit import nets

        kind = jnp.bfloat16 if half else jnp.float32
        rngs = nnx.Rngs(0)
        self.net = Built(nets.NAMES[name](classes), images.shape[1:], rngs, kind)
        self.net.train()
        self.optimizer = nnx.Optimizer(self.net, optax.sgd(LR, MOMENTUM), wrt=nnx.Param)
        self.parameters = sum(p.size for p in jax.tree.leaves(nnx.state(self.net, nnx.Param)))
        self.images, self.labels, self.index = jax.device_put((images, labels, list(index)))
        self.count = index.size

        takes_net = "model" in inspect.signature(nnx.Optimizer.update).parameters  # since Flax 0.11

        @nnx.jit
        def step(net, optimizer, images, labels, index):
            x = ((images[index].astype(jnp.float32) / 255 - MEAN) / STD).astype(kind)

            def loss(net):
                logits = net(x).astype(jnp.float32)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels[index]).mean()

            grads = nnx.grad(loss)(net)
            if takes_net:
                optimizer.update(net, grads)
            else:
                optimizer.update(grads)

        self.step = step

    def run(self) -> float:
        """A step on every mini-batch; returns images a second."""
        begin = time.perf_counter()
        for index in self.index:
            self.step(self.net, self.optimizer, self.images, self.labels, index)
        jax.block_until_ready(nnx.state(self.net))
        return self.count / (time.perf_counter() - begin)
