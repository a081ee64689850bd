"""CIFAR-10 to 94 % and to 96 % as fast as one GPU can: whole trainings, their accuracies and their seconds."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cnnkit.experiments.base import Experiment, Row, row

# What a training takes beside the network. Rates of what SGD trains are a thousand examples' at the peak.
RECIPES: dict[str, dict[str, Any]] = {
    "fast94": {
        "widths": (64, 256, 256),
        "batch": 2000,
        "epochs": 10,
        "lr": 0.24,
        "momentum": 0.6,
        "bias_lr": 53.0,
        "head_lr": 2.6,
        "smoothing": 0.2,
        "shift": 2,
        "sides": ((24, 4), (28, 3)),
        "cutout": 0,
        "jitter": 0.0,
        "activation": "gelu",
        "whiten_bias": True,
        "freeze": 1,
        "norm_momentum": 0.6,
        "unsure": 0.25,
        "warmup": 0.0,
    },
    "fast96": {
        "widths": (128, 384, 512),
        "batch": 2000,
        "epochs": 32,
        "lr": 0.24,
        "momentum": 0.6,
        "bias_lr": 53.0,
        "head_lr": 2.6,
        "smoothing": 0.2,
        "shift": 4,
        "sides": ((24, 8), (28, 8)),
        "cutout": 12,
        "jitter": 0.0,
        "activation": "gelu",
        "whiten_bias": True,
        "freeze": 6,
        "norm_momentum": 0.8,
        "unsure": 0.4,
        "warmup": 0.0,
    },
}
"""Settings of each network's training; `recipe` takes others in their place."""


def recipe(name: str, data: Any, *, seed: int = 0, dtype: str = "bfloat16", **changes: Any) -> Any:
    """The run that trains one of the fast networks.

    Filters go by Muon and keep their length, biases and the last layer by Nesterov SGD, all rates fall in a
    line to 0; images alternate between mirrored and not, epoch by epoch, are shifted by whole pixels and, where
    ``sides`` says so, first seen in parts; the loss is smoothed; the first layer whitens patches, and its bias is
    soon frozen; an image the network is unsure of is judged by six views.

    Args:
        name: ``"fast94"`` or ``"fast96"``.
        data: a `Dataset` of images of at least 32×32.
        seed: of the run.
        dtype: what the network computes in.
        changes: settings in place of those in `RECIPES`.

    Raises:
        ValueError: a name or a setting that there is not.

    Jordan 2024; Hiverge 2025.
    """
    import cnnkit as ck
    from cnnkit.names import choose
    from cnnkit.train.report import Silent
    from cnnkit.train.views import Views

    s = dict(choose(name, RECIPES, "fast network"))
    for key, value in changes.items():
        choose(key, s, f"setting of {name}")
        s[key] = value
    net = getattr(ck.nets, name)(
        len(data.classes),
        widths=s["widths"],
        activation=s["activation"],
        whiten_bias=s["whiten_bias"],
        momentum=s["norm_momentum"],
    )
    return ck.Run(
        net,
        data,
        batch=s["batch"],
        epochs=s["epochs"],
        seed=seed,
        optimizer=_optimizer(s),
        augment=_augment(s, data.shape[0]),
        smoothing=s["smoothing"],
        dtype=dtype,
        judge="test",
        freeze=[(s["freeze"], 1)] if s["whiten_bias"] and s["freeze"] else [],
        views=Views(unsure=s["unsure"]) if s["unsure"] else None,
        evaluate_every=s["epochs"],
        dispatch="epoch",
        watch=Silent(),
    )


def _optimizer(s: Mapping[str, Any]) -> Any:
    import cnnkit as ck

    # Gradients are means here: the rate of a sum over the batch grows with it.
    thousands = s["batch"] / 1000
    head = s["head_lr"] * thousands / s["widths"][-1]
    return ck.optim.muon(
        ck.optim.one_cycle(s["lr"], rise=s["warmup"], start=0.2),
        momentum=s["momentum"],
        steps=3,
        unit=True,
        matrices=head / s["lr"],
        rest=s["bias_lr"] * thousands / s["lr"],
        rest_momentum=0.85,
        rest_decay=2e-3 / s["bias_lr"],
    )


def _augment(s: Mapping[str, Any], side: int) -> Any:
    from cnnkit import augment

    def stage(size: int) -> Any:
        # A part of an image, about its middle, has room to move without a border.
        pad = max(0, s["shift"] - (side - size) // 2)
        parts = [
            augment.flip(mode="alternate"),
            augment.crop(size, pad=pad, outside="reflect" if pad else "edge"),
        ]
        if s["cutout"]:
            parts.append(
                augment.cutout(s["cutout"], background=0.47)
            )  # about the mean of the training images
        if s["jitter"]:
            parts += [augment.brightness(s["jitter"] / 4), augment.contrast(s["jitter"])]
        return augment.chain(*parts)

    if not s["sides"]:
        return stage(side)
    return augment.stages(*((stage(size), epochs) for size, epochs in s["sides"]), stage(side))


def timed(run: Any, seeds: int, first: int = 1, warm: bool = True) -> tuple[list[float], list[float], float]:
    """Whole trainings, one after another, with what is compiled at the first.

    Args:
        run: from `recipe`, of seed 0.
        seeds: how many.
        first: seed.
        warm: whether two trainings before, not counted, compile and learn how long steps take; else the run's own
            is the first of those that count, and its time says nothing.

    Returns:
        test accuracies (0 to 1) after the last epoch, seconds from the drawing of the weights to the last
        answer, and seconds of compiling.
    """
    accuracy, seconds, compiling = [], [], 0.0
    uncounted = [None, first] if warm else []  # None for the run as it is
    counted = [*([] if warm else [None]), *range(first, first + seeds)][:seeds]
    for i, seed in enumerate([*uncounted, *counted]):
        begin = time.perf_counter()
        (run if seed is None else run.again(seed)).fit()
        if i < 2:
            compiling += run.clocks.seconds["compile"]
        if i >= len(uncounted):
            seconds.append(time.perf_counter() - begin)
            accuracy.append(run.history[-1]["test_accuracy"])
    return accuracy, seconds, compiling


def enlarged(data: Any, times: int) -> Any:
    """The same data with each pixel as many in either direction."""
    import cnnkit as ck

    bigger = lambda split: np.repeat(np.repeat(split.images, times, 1), times, 2)
    return ck.from_arrays(
        bigger(data.train),
        data.train.labels,
        bigger(data.test),
        data.test.labels,
        name=f"{data.name}_{times}x",
    )


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Train each network with several seeds."""
    import jax

    import cnnkit as ck

    data = ck.load(settings["data"]).take(train=settings["train"], test=settings["test"])
    data = enlarged(data, settings["times"]) if settings["times"] > 1 else data
    rows = []
    dtype = settings["dtype"] or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    for name, changes in settings["nets"].items():
        trained = recipe(name, data, dtype=dtype, **changes)
        accuracy, seconds, compiling = timed(trained, settings["seeds"])
        percent = [100 * a for a in accuracy]
        rows += [
            row(name, "accuracy", percent, "%", mean=float(f"{np.mean(percent):.5g}"), found=percent),
            row(name, "seconds", seconds, "s", found=[round(s, 4) for s in seconds]),
            row(name, "compile_seconds", [compiling], "s"),
        ]
    return rows


def figure(rows: list[Row]) -> Any:
    """Accuracy against seconds, a point a training, with each network's mean."""
    from cnnkit.notebook import style

    picture, (axes,) = style.figure(4.6, 3.2)
    for i, name in enumerate(dict.fromkeys(r["case"] for r in rows)):
        found = {r["figure"]: r["found"] for r in rows if r["case"] == name and "found" in r}
        x, y = found["seconds"], found["accuracy"]
        color = style.COLORS[i % len(style.COLORS)]
        axes.plot(x, y, "o", color=color, markersize=3, alpha=0.5, label=f"{name}, n = {len(x)}")
        axes.plot([np.mean(x)], [np.mean(y)], "D", color=color, markersize=7, markeredgecolor="white")
    axes.set_xlim(left=0)
    style.label(axes, "training and evaluation (s)", "test accuracy, last epoch (%)")
    style.legend(axes)
    return picture


EXPERIMENT = Experiment(
    name="fast_cifar10",
    title="CIFAR-10 to 94 % and 96 % on one GPU: whole trainings after compiling",
    source="thesis, chapter 4, with the means of today",
    presets={
        "smoke": {
            "data": "digits", "train": 200, "test": 100, "times": 4, "seeds": 2, "dtype": None,
            "nets": {"fast94": {"widths": (8, 16, 16), "batch": 50, "epochs": 3, "sides": ((24, 1),), "freeze": 2}},
        },
        "small": {
            "data": "cifar10", "train": 5000, "test": 2000, "times": 1, "seeds": 2, "dtype": None,
            "nets": {
                "fast94": {
                    "widths": (16, 64, 64), "batch": 500, "epochs": 8, "sides": (), "freeze": 3, "unsure": 0.4,
                }
            },
        },
        "full": {
            "data": "cifar10", "train": None, "test": None, "times": 1, "seeds": 50, "dtype": None,
            "nets": {"fast94": {}},
        },
    },
    run=run,
    figure=figure,
    shown=("accuracy", "seconds", "compile_seconds"),
    note=(
        "Each time is of a whole training and its evaluation, from the drawing of the weights on, without compiling. "
        "In small size a network of a quarter of the width learns from a tenth of the images, and reaches less."
    ),
)  # fmt: skip
