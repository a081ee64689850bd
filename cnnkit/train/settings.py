"""A run's settings: checked before anything is compiled, kept beside the results, compared on resuming."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from cnnkit.data import Dataset
from cnnkit.layers import Layer
from cnnkit.names import choose

IDENTITY = ("net", "data", "batch", "seed", "optimizer", "augment", "normalize", "loss", "dtype", "mode")


def count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least so many.

    Raises:
        ValueError: it is not; the text names the setting.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return value


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


def loss_function(loss: str, smoothing: float, classes: int, losses: Mapping[str, Callable]) -> Callable:
    """The loss of that name as ``loss(logits, labels) -> [B]``."""
    function = choose(loss, losses, "loss")
    if smoothing and loss != "cross_entropy":
        raise ValueError(f"smoothing={smoothing} goes with loss='cross_entropy', not {loss!r}")
    if not (math.isfinite(smoothing) and 0 <= smoothing < 1):
        raise ValueError(f"smoothing is {smoothing}; it must be at least 0 and below 1")
    if smoothing:
        return lambda logits, labels: function(logits, labels, smoothing=smoothing)
    return lambda logits, labels: function(logits, labels)


def check_classes(net: Layer, out_shape: tuple[int, ...], data: Dataset) -> None:
    """Hold the network's last layer against the classes.

    Raises:
        ValueError: the network does not give one number a class.
    """
    wanted = (len(data.classes),)
    if out_shape != wanted:
        shown = "×".join(map(str, out_shape))
        last = net.parts[-1].name if net.parts else net.name
        raise ValueError(
            f"the network ends in shape {shown} (last layer: {last}), but {data.name} has {wanted[0]} classes; "
            f"end it with dense({wanted[0]})"
        )


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What identifies a run and is not the same, each as ``"batch was 128, is 64"``."""
    found = []
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
        if len(then) != len(now):
            return f"the number of {path}", len(then), len(now)
        for i, (a, b) in enumerate(zip(then, now)):
            if a != b:
                return _first_difference(a, b, f"{path}[{i}]")
    return path, then, now
