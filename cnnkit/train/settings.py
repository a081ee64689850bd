"""A run's settings: checked before anything is compiled, kept beside the results, compared on resuming."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cnnkit.data import Dataset
from cnnkit.layers import Layer
from cnnkit.layers.walk import walk
from cnnkit.names import choose
from cnnkit.parallel.fetch import Policy, RoundView, as_policy

if TYPE_CHECKING:
    from cnnkit.train.rules import Rules
    from cnnkit.train.task import Task

# What a checkpoint's numbers depend on; the rest may change when a run is gone on with.
IDENTITY: tuple[str, ...] = (
    "net",
    "data",
    "batch",
    "seed",
    "optimizer",
    "augment",
    "normalize",
    "loss",
    "dtype",
    "freeze",
)
IDENTITY += ("mode", "delay", "payload", "momentum", "outer", "outer_lr", "outer_momentum")
# What all processes of a job must have alike, so that they do the same at the same time.
TOGETHER = (*IDENTITY, "cnnkit", "epochs", "workers", "fetch", "exchange", "emulated", "judge", "views")
TOGETHER += ("evaluate_every", "kept")


def count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least so many.

    Raises:
        ValueError: it is not; the text names the setting.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return value


def not_negative(name: str, value: Any) -> float:
    """A number of at least 0.

    Raises:
        ValueError: it is not; the text names the setting.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{name} is {value!r}; it must be a number of at least 0")
    return float(value)


def policy(fetch: Policy | int | str, delay: int) -> Policy:
    """A fetch policy, tried once on made-up measurements so that what it cannot do is known at once.

    Raises:
        ValueError: no policy, or one that does not go with this delay.
    """
    made = as_policy(fetch)
    made(RoundView(workers=1, lr=0.1, speeds=(1.0,), exchange_seconds=1.0, delay=delay))
    return made


def batch_size(batch: Any, data: Dataset) -> int:
    """A batch that the training set can fill.

    Raises:
        ValueError: it is not a whole number, or larger than the training set.
    """
    count("batch", batch)
    if batch > len(data):
        raise ValueError(
            f"batch is {batch}, but {data.name} has only {len(data)} training examples; take a smaller batch"
        )
    return batch


def images(given: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Images uint8 [N, H, W, C], as the network was trained on.

    Raises:
        ValueError: another type or shape.
    """
    array = np.asarray(given)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1:] != tuple(shape) or not len(array):
        wanted = ", ".join(map(str, shape))
        raise ValueError(
            f"images are {array.dtype}{list(array.shape)}; they must be uint8 [N, {wanted}], 0 to 255, as in training"
        )
    return array


def parts(judge: str | Sequence[str] | None, data: Dataset) -> tuple[str, ...]:
    """The parts of the data to evaluate after an epoch.

    Raises:
        ValueError: a part that the data does not have.
    """
    if judge is None:
        return ("test",) if data.held_out is None else ("held_out", "test")
    chosen = (judge,) if isinstance(judge, str) else tuple(judge)
    for part in chosen:
        data.split(part)
    return chosen


def loss_function(loss: str, smoothing: float, losses: Mapping[str, Callable]) -> Callable:
    """The loss of that name as ``loss(logits, labels) -> [B]``.

    Raises:
        ValueError: an unknown name, or a smoothing that does not go with it.
    """
    function = choose(loss, losses, "loss")
    if not (math.isfinite(smoothing) and 0 <= smoothing < 1):
        raise ValueError(f"smoothing is {smoothing}; it must be at least 0 and below 1")
    if not smoothing:
        return lambda logits, labels: function(logits, labels)
    if loss != "cross_entropy":
        raise ValueError(f"smoothing={smoothing} goes with loss='cross_entropy', not {loss!r}")
    return lambda logits, labels: function(logits, labels, smoothing=smoothing)


def check_shapes(task: "Task", data: Dataset) -> None:
    """Go through the network's shapes and hold its last one against the classes; nothing is compiled.

    Raises:
        ValueError: a layer cannot take what reaches it, the network does not give one number a class, or stages
            of augmentation give images of sizes for which its weights differ.
    """
    net = task.net
    params, out = _drawn(net, task.augment.out_shape(data.shape) if task.augment else data.shape)
    for stage in task.augment.parts if task.augment and task.augment.stages else ():
        _check_stage(net, str(stage), _drawn(net, stage.out_shape(data.shape))[0], params)
    classes = len(data.classes)
    if out != (classes,):
        shown = "×".join(map(str, out))
        last = net.parts[-1].name if net.parts else net.name
        raise ValueError(
            f"the network ends in shape {shown} (its last layer: {last}), but {data.name} has {classes} classes; "
            f"end it with dense({classes})"
        )


def freeze(pairs: Sequence[tuple[int, int]], net: Layer) -> tuple[tuple[int, int], ...]:
    """(epoch, layers) pairs as they are, if the network has layers to be frozen so.

    Raises:
        ValueError: it has not, or they do not grow.
    """
    made = tuple(tuple(pair) for pair in pairs)
    if not made:
        return ()
    if net.kind != "serial":
        raise ValueError(f"freeze takes a network of layers one after another, a serial(…), not a {net.kind}")
    for before, pair in zip((None, *made), made):
        whole = len(pair) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in pair)
        if not (whole and pair[0] >= 0 and 1 <= pair[1] < len(net.parts)):
            raise ValueError(
                f"freeze has {pair!r}, where (epoch, layers) is needed: the epoch from 0, and how many of the "
                f"network's first layers, 1 to {len(net.parts) - 1}, learn no more from then on"
            )
        if before is not None and not (before[0] < pair[0] and before[1] < pair[1]):
            raise ValueError(f"freeze has {pair!r} after {before!r}; epochs and layers must grow")
    return made  # type: ignore[return-value]  # each was looked at


def _drawn(net: Layer, shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Shapes of all weights for inputs of a shape, and the output's."""
    out: list[tuple[int, ...]] = []

    def init(key):
        params, _, out_shape = net.init(key, shape)
        out.append(out_shape)
        return params

    return jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0))), out[0]


def _check_stage(net: Layer, stage: str, params: Any, last: Any) -> None:
    for (path, _, mine), (_, _, other) in zip(walk(net, params), walk(net, last), strict=True):
        pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True)
        for shape, final in ((a.shape, b.shape) for a, b in pairs if a.shape != b.shape):
            raise ValueError(
                f"in the stage {stage} layer {path} would have weights of shape {shape}, in the last one {final}; "
                "take sizes for which all weights are the same, or put a global_pool() before that layer"
            )


def describe_data(data: Dataset) -> dict[str, Any]:
    """What identifies a data set in a record."""
    counts = {part: len(data.split(part).labels) for part in data.parts}
    return {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "shape": list(data.shape),
        "classes": list(data.classes),
        "examples": counts,
    }


def describe_rules(rules: "Rules") -> dict[str, Any]:
    """How workers work together, as plain data."""
    described = {f.name: getattr(rules, f.name) for f in dataclasses.fields(rules)}
    del described["single"]  # follows from the period
    emulated = described.pop("emulated")
    return described | {"emulated": None if emulated is None else dataclasses.asdict(emulated)}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What identifies a run and is not the same, each as ``"batch was 128, is 64"``."""
    found = []
    then = {"freeze": []} | dict(then)  # older runs do not tell, as none of them could
    for key in IDENTITY:
        if then.get(key) != now.get(key):
            where, was, this = _first_difference(then.get(key), now.get(key), key)
            found.append(f"{where} was {was!r}, is {this!r}")
    return found


def _first_difference(then: Any, now: Any, path: str) -> tuple[str, Any, Any]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in [*then, *(k for k in now if k not in then)]:
            if then.get(key) != now.get(key):
                return _first_difference(then.get(key), now.get(key), f"{path}.{key}")
    if isinstance(then, list) and isinstance(now, list):
        if len(then) != len(now) and path != "freeze":
            return f"the number of {path}", len(then), len(now)
        for i, (a, b) in enumerate(zip(then, now)):
            if a != b:
                return _first_difference(a, b, f"{path}[{i}]")
    return path, then, now
