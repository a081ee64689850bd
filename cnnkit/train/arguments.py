"""What people give `Run`: objects, or text that stands for one; anything else is told what is expected."""

import functools
import json
import os
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

import optax

from cnnkit import augment
from cnnkit.augment import Augment
from cnnkit.data import Dataset, from_folder, load
from cnnkit.data.sources import SOURCES
from cnnkit.layers import Layer
from cnnkit.names import brief, choose, unknown
from cnnkit.nets import NAMES
from cnnkit.parallel.emulate import Emulated, emulate
from cnnkit.parallel.fetch import Policy
from cnnkit.train.optim import OPTIMIZERS, Optimizer, sgd
from cnnkit.train.schedule import SCHEDULES, Schedule
from cnnkit.train.text import made, several
from cnnkit.train.views import Views

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("lr", "learning_rate", "schedule"), "the rate goes with the optimizer, as optimizer='sgd(0.1)'"
    ),
    "weight_decay": "it goes with the optimizer, as optimizer='adamw(weight_decay=1e-4)', or with a layer's decay=",
    **dict.fromkeys(("callback", "callbacks"), "watch= takes an object that is told of the progress"),
    **dict.fromkeys(("device", "devices", "gpus"), "workers= says how many devices train together"),
}
"""Keywords that are no argument of `Run`, and where what they mean goes."""

SETS: Mapping[str, None] = dict.fromkeys(("digits", *SOURCES))
"""The sets that are known by name."""

PLAIN: Mapping[str, tuple[Any, str]] = {
    "folder": ((str, os.PathLike, type(None)), "a path, such as 'runs/first'"),
    "normalize": (bool, "True or False"),
    "smoothing": (Real, "a number from 0 to below 1"),
    "outer_lr": (Real, "a number above 0"),
    "outer_momentum": (Real, "a number from 0 to below 1"),
    "fetch": (
        (Policy, int, str),
        "a policy, such as fetch.every(4), a whole number, or text, such as 'balanced(every(4))'",
    ),
    "judge": ((Iterable, type(None)), "a part of the data or a list of parts, such as ['held_out', 'test']"),
}


def check(**given: Any) -> None:
    """Hold settings that are used as they are against the types in `PLAIN`.

    Raises:
        TypeError: one is of another; the text names it and what is expected.
    """
    for name, value in given.items():
        kind, wanted = PLAIN[name]
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {brief(value)}; it must be {wanted}")


def pairs(freeze: Any) -> tuple[tuple[Any, Any], ...]:
    """What `Run` takes for freeze, as far as its form goes.

    Raises:
        TypeError: it has not that form.
    """
    given = tuple(freeze) if isinstance(freeze, Iterable) and not isinstance(freeze, str) else (freeze,)
    if not all(isinstance(pair, list | tuple) for pair in given):
        raise TypeError(f"freeze is {brief(freeze)}; it must be (epoch, layers) pairs, such as [(5, 1)]")
    return given


def watching(watch: Any) -> Any:
    """Who is told of the progress, if it can be told.

    Raises:
        TypeError: a method is missing.
    """
    lacks = [name for name in ("begin", "tick", "row", "end") if not callable(getattr(watch, name, None))]
    if watch is not None and lacks:
        raise TypeError(
            f"watch is {brief(watch)}, which has no {lacks[0]}(); it must have begin(run), tick(run), "
            "row(run, row) and end(run, why), as cnnkit.train.report.Lines has"
        )
    return watch


def dataset(given: Any, size: int | None = None) -> Dataset:
    """A data set, or the one that a name or the folder of its images stands for.

    Args:
        given: a Dataset, ``"mnist"``, or ``"photos"`` with a folder of images for each class.
        size: side of a folder's images.

    Raises:
        TypeError: it is neither.
        ValueError: text that names none, or a set that is damaged.
        FileNotFoundError, NotADirectoryError: a path at which no folder lies.
        ConnectionError: the set is not here and cannot be fetched.
    """
    if isinstance(given, Dataset):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"data is {brief(given)}, not a data set; load one by its name, as load('mnist'), or make one of "
            "your arrays by from_arrays(train_images, train_labels, test_images, test_labels)"
        )
    path, text = Path(given), os.fspath(given)
    if path.is_dir():
        return from_folder(path, size=size)
    if text in SETS:
        return load(text)
    like = "a folder with a folder of images for each class"
    if path.exists():
        raise NotADirectoryError(f"{text} is a file; data is the name of a set, or {like}")
    if path.name != text:
        raise FileNotFoundError(f"{text}: no such folder; data is one of {', '.join(SETS)}, or {like}")
    raise ValueError(f"{unknown(text, SETS, 'data set')}; nor is there a folder of that name")


def network(given: Any, classes: int) -> Layer:
    """A network, or the one of `cnnkit.nets` that a name stands for.

    Raises:
        TypeError: it is neither.
        ValueError: an unknown name.
    """
    if isinstance(given, Layer):
        return given
    if isinstance(given, str):
        return choose(given, NAMES, "network")(classes)
    what = f"net is {brief(given)}, not a network"
    if any(given is make for make in NAMES.values()):  # and not by ==, which arrays take otherwise
        raise TypeError(f"{what}; call it, as nets.{given.__name__}({classes})")
    call = ", and a function that makes one must be called" if callable(given) else ""
    raise TypeError(f"{what}; build one with serial(…) or take one of cnnkit.nets{call}")


def name_of(net: Layer, classes: int) -> str | None:
    """The name in `cnnkit.nets` of a network like this one, None where there is none."""
    return _names(classes).get(json.dumps(net.describe()))


@functools.cache
def _names(classes: int) -> dict[str, str]:
    return {json.dumps(make(classes).describe()): name for name, make in NAMES.items()}


def optimizer(given: Any, lr: str | None = None) -> Optimizer:
    """An optimizer, or the one that text such as ``"sgd(one_cycle(0.1), momentum=0.95)"`` stands for.

    Args:
        given: an Optimizer, text, or None for SGD.
        lr: a learning rate written apart from it, ``"0.1"`` or ``"cosine(0.1, warmup=1)"``.

    Raises:
        TypeError: it is none.
        ValueError: text that names none, or settings that cannot work.
    """
    if given is None:
        return sgd()
    if isinstance(given, Optimizer):
        return given
    if not isinstance(given, str):
        _no_optimizer(given)
    if lr is None:
        return made(given, OPTIMIZERS, "optimizer", SCHEDULES)
    rate = _rate(lr)
    return made(given, {name: _with(rate, make) for name, make in OPTIMIZERS.items()}, "optimizer", SCHEDULES)


def _rate(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return made(text, SCHEDULES, "schedule")


def _with(rate: Any, make: Any) -> Any:
    @functools.wraps(make)
    def call(*placed: Any, **settings: Any) -> Optimizer:
        if placed or "lr" in settings:
            raise ValueError(
                f"the learning rate is given twice, within {make.__name__}(…) and apart from it; leave one out"
            )
        return make(rate, **settings)

    return call


def _no_optimizer(given: Any) -> NoReturn:
    what = f"optimizer is {brief(given)}, not an optimizer"
    if isinstance(given, Real):
        raise TypeError(f"{what}; for a learning rate write optimizer='sgd({given})', or optim.sgd({given})")
    if isinstance(given, Schedule):
        raise TypeError(f"{what}; put the schedule into one, as optim.sgd(optim.{given.name}(…))")
    if isinstance(given, optax.GradientTransformation):
        raise TypeError(
            f"{what}: optax has the learning rate inside, and a run gives it anew for each step. Wrap what makes it: "
            "optim.Optimizer('mine', {}, optim.constant(0.1), 0.9, lambda lr, momentum: optax.sgd(lr, momentum))"
        )
    call = "call it, as optim.sgd(0.1), or " if callable(given) else ""
    raise TypeError(f"{what}; {call}take one of cnnkit.optim or its text, such as 'sgd(0.1, momentum=0.9)'")


def augmentation(given: Any) -> Augment | None:
    """An augmentation, or those one after another that text such as ``"flip(), crop(32, pad=4)"`` stands for.

    Text may have stages, as ``"stages((crop(24), 3), crop(32))"``, of one augmentation each.

    Raises:
        TypeError: it is neither.
        ValueError: text that names none, or settings that cannot work.
    """
    if given is None or isinstance(given, Augment):
        return given
    if isinstance(given, str):
        makers = {**augment.MAKERS, "stages": augment.stages}
        parts = several(given, makers, "augmentation", augment.MAKERS)
        return parts[0] if len(parts) == 1 else augment.chain(*parts)
    if isinstance(given, list | tuple):
        how = "put them one after another with augment.chain(flip(), crop(32, pad=4))"
    elif callable(given):
        how = f"call it, as augment.{getattr(given, '__name__', 'flip')}(…)"
    else:
        how = "take one of cnnkit.augment or its text, such as 'flip(), crop(32, pad=4)'"
    raise TypeError(f"augment is {brief(given)}, not an augmentation; {how}")


def views(given: Any) -> Views | None:
    """Views, or those that text such as ``"views(mirror=True, shift=1)"`` stands for.

    Raises:
        TypeError: they are neither.
        ValueError: text of another form, or settings that cannot be.
    """
    if given is None or isinstance(given, Views):
        return given
    if not isinstance(given, str):
        raise TypeError(
            f"views is {brief(given)}; it must be Views(…) or text, such as 'views(mirror=True, shift=1)'"
        )
    if given.partition("(")[0].strip().lower() != "views":
        raise ValueError(
            f"views is {given!r}; it is written with its settings, as views(mirror=True, shift=1)"
        )
    return made(given.strip().replace("Views", "views", 1), {"views": Views}, "views")


def emulated(given: Any) -> Emulated | None:
    """Workers made slower, or those of a list of speeds.

    Raises:
        TypeError: it is neither.
        ValueError: speeds that cannot be.
    """
    if given is None or isinstance(given, Emulated):
        return given
    if isinstance(given, list | tuple) and all(isinstance(speed, Real) for speed in given):
        return emulate(given)
    raise TypeError(f"emulate is {brief(given)}; it must be the speed of each worker, such as [1, 0.5]")
