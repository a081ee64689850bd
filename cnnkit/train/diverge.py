"""When a loss is no longer a finite number: where that began, said in words."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cnnkit.data import Split
from cnnkit.layers import Layer, walk
from cnnkit.train.step import Plan, Source, mini_batch
from cnnkit.train.task import Model, Task

ADVICE = "Lower the learning rate, warm it up, or look at the data"


class Diverged(RuntimeError):
    """A loss or a weight was no longer a finite number; the text names where, and what was kept."""


def finite(tree: Any) -> bool:
    """Whether every number in a tree of arrays is finite."""
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def place(task: Task, model: Model, train: Split, plan: Plan, batch: int) -> str:
    """The layer in which numbers cease to be finite, for the model before its first bad step.

    Args:
        task, model: what was trained, and where it stood.
        train, plan: the examples and the epoch.
        batch: the mini-batch whose loss was not finite.

    Returns:
        Words to be put in a sentence, "" where nothing is found.
    """
    if where := bad_weight(task.net, model.params):
        return where
    at = mini_batch(Source(*train), plan, batch)
    augment_key, net_key = jax.random.split(at.key)
    x = task.at(int(plan.epoch)).augmented(at._replace(images=jnp.asarray(at.images)), augment_key)
    if not finite(x):
        return "the images as they come out of the augmentation"
    params = jax.tree.map(lambda w: w.astype(task.dtype), model.params)
    found: list[str] = []
    logits = _forward(task.net, params, model.state, x, net_key, "", found.append)
    if found:
        return f"the output of layer {found[0]}"
    loss = task.loss(logits.astype(jnp.float32), jnp.asarray(at.labels)) * at.weight
    return "" if finite(loss) else "the loss itself, for logits that are finite"


def bad_weight(net: Layer, params: Any) -> str:
    """The first layer with a weight that is not finite, in words; "" where there is none."""
    for path, _, own in walk(net, params):
        for name, weight in own.items() if isinstance(own, dict) else ():
            if not finite(weight):
                return f"the weights of layer {path}, its {name}"
    return ""


def _forward(
    net: Layer, params: Any, state: Any, x: Any, key: Any, path: str, tell: Callable[[str], None]
) -> Any:
    """The network's output as in training; ``tell`` hears of each layer whose output is not finite."""
    if not net.parts:
        y, _ = net.apply(params, state, x, key=key, train=True)
        if not finite(y):
            tell(path or net.name)
        return y
    outputs = []
    for i, (part, p, s) in enumerate(zip(net.parts, params, state, strict=True)):
        here = f"{path} / {i} {part.name}".removeprefix(" / ")
        outputs.append(_forward(part, p, s, x, jax.random.fold_in(key, i), here, tell))
        x = x if net.join else outputs[-1]
    return net.join(outputs) if net.join else x
