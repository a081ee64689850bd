"""Convolution by three algorithms, forward and backward, timed over kernel sizes and networks' layers."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnnkit.experiments.axes import decades
from cnnkit.experiments.base import Experiment, Row, row

ALGORITHMS = ("direct", "matmul", "fft")


def run(settings: Mapping[str, Any], folder: Path) -> list[Row]:
    """Time each algorithm on each shape; a shape is (batch, image, channels, features, kernel)."""
    rows = []
    sweep = settings["sweep"]
    shapes = [("kernel", (*sweep, k)) for k in settings["kernels"]]
    shapes += [("layer", tuple(shape)) for shape in settings["layers"]]
    for kind, shape in shapes:
        for algorithm in ALGORITHMS:
            taken = seconds(shape, algorithm, settings["n"], settings["enough"])
            rows.append(
                row(
                    name(shape),
                    f"{algorithm}_ms",
                    [1000 * s for s in taken],
                    "ms",
                    kind=kind,
                    kernel=shape[4],
                )
            )
    return rows


def name(shape: Sequence[int]) -> str:
    """A shape in words.

    >>> name((128, 28, 1, 20, 5))
    '5×5, 1 → 20 channels, 28×28, batch 128'
    """
    batch, image, channels, features, kernel = shape
    return f"{kernel}×{kernel}, {channels} → {features} channels, {image}×{image}, batch {batch}"


def seconds(shape: Sequence[int], algorithm: str, n: int, enough: float) -> list[float]:
    """Seconds of a forward and backward pass, n times; each the mean over about ``enough`` seconds of passes."""
    import jax
    import jax.numpy as jnp

    from cnnkit.layers import conv

    batch, image, channels, features, kernel = shape
    layer = conv(features, kernel, padding="same", algorithm=algorithm)
    key = jax.random.key(0)
    params, state, _ = layer.init(key, (image, image, channels))
    x = jax.random.normal(key, (batch, image, image, channels))

    @jax.jit
    def both(params, x):
        def total(params, x):
            return jnp.sum(layer.apply(params, state, x, key=key, train=True)[0] ** 2)

        return jax.grad(total, argnums=(0, 1))(params, x)

    jax.block_until_ready(both(params, x))
    begin = time.perf_counter()
    jax.block_until_ready(both(params, x))
    passes = max(1, min(1000, math.ceil(enough / (time.perf_counter() - begin))))
    taken = []
    for _ in range(n):
        begin = time.perf_counter()
        for _ in range(passes):
            out = both(params, x)
        jax.block_until_ready(out)
        taken.append((time.perf_counter() - begin) / passes)
    return taken


def figure(rows: list[Row]) -> Any:
    """Time against the kernel's size, and each layer's time by algorithm, both logarithmic."""
    import numpy as np

    from cnnkit.notebook import style

    picture, axes = style.figure(7.0, 3.3, columns=2)
    layers = list(dict.fromkeys(r["case"] for r in rows if r["kind"] == "layer"))
    for i, algorithm in enumerate(ALGORITHMS):
        ours = [r for r in rows if r["figure"] == f"{algorithm}_ms"]
        swept = [r for r in ours if r["kind"] == "kernel"]
        k = [r["kernel"] for r in swept]
        axes[0].errorbar(
            k, [r["value"] for r in swept], [r["spread"] for r in swept], color=style.COLORS[i],
            linestyle=style.LINES[i], marker="o", markersize=3, capsize=2, label=algorithm,
        )  # fmt: skip
        times = [r["value"] for r in ours if r["kind"] == "layer"]
        at = np.arange(len(layers)) + 0.26 * (i - 1)
        axes[1].barh(at, times, 0.24, color=style.COLORS[i], label=algorithm)
    shape = next(r["case"] for r in rows if r["kind"] == "kernel").partition(", ")[2]
    decades(axes[0], [r["value"] for r in rows if r["kind"] == "kernel"], "y")
    axes[0].set_xticks(k, map(str, k))
    style.label(axes[0], "kernel size (pixels)", "forward and backward (ms)", shape)
    style.legend(axes[0])
    axes[1].set_yticks(np.arange(len(layers)), [layer.replace(" channels, ", ",\n") for layer in layers])
    axes[1].tick_params(axis="y", labelsize=7)
    axes[1].invert_yaxis()
    decades(axes[1], [r["value"] for r in rows if r["kind"] == "layer"])
    style.label(axes[1], "forward and backward (ms)", title="layers of networks")
    return picture


LAYERS = [
    (128, 28, 1, 20, 5),
    (128, 12, 20, 50, 5),
    (128, 12, 128, 64, 5),
    (64, 16, 96, 192, 5),
    (32, 32, 64, 64, 3),
]

EXPERIMENT = Experiment(
    name="conv_algorithms",
    title="Convolution: direct, as a matrix product, by Fourier transform",
    source="thesis, section 4.2",
    presets={
        "smoke": {"sweep": (2, 16, 4, 4), "kernels": [1, 9], "layers": [(4, 12, 1, 8, 5)], "n": 1, "enough": 0.0},
        "small": {
            "sweep": (16, 32, 16, 16), "kernels": [1, 3, 5, 7, 11, 15, 21], "layers": LAYERS, "n": 5, "enough": 0.2,
        },
        "full": {
            "sweep": (128, 64, 64, 64), "kernels": [1, 3, 5, 7, 11, 15, 21], "layers": LAYERS, "n": 9, "enough": 0.2,
        },
    },
    run=run,
    figure=figure,
    note="Each time is of a forward and a backward pass, without compiling; ± is over repetitions.",
)  # fmt: skip
