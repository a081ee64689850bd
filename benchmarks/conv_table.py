"""Times convolutions by each algorithm and keeps them where `algorithm="auto"` looks them up.

    python -m benchmarks.conv_table            # all cases of this backend, in cnnkit/layers/conv_table.json
    python -m benchmarks.conv_table --n 9      # more repetitions
    python -m benchmarks.conv_table --layers   # a GPU's rows out of results/layers_gpu.json, nothing is measured

Rows of other backends stay as they are: run it once on a CPU and once on a machine with a GPU.
"""

import argparse
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import cnnkit.layers
from benchmarks import results
from cnnkit.layers import compiler_options
from cnnkit.layers.choice import Case
from cnnkit.layers.convolve import ALGORITHMS, Window, case

TABLE = Path(cnnkit.layers.__file__).parent / "conv_table.json"

# batch, image, channels, features, kernel, padding, stride, groups: the layers of LeNet, CUDA-CNN's and Purine's networks,
# ResNet's kinds and stages, one of VGG's, a depth-wise layer, large kernels, those with wide strides of AlexNet's and ResNet's first layers and of
# a network that plays, and a batch of one.
GRID = [
    (128, 28, 1, 20, 5, 0, 1, 1),
    (128, 12, 20, 50, 5, 0, 1, 1),
    (128, 12, 32, 64, 5, 0, 1, 1),
    (128, 24, 3, 32, 5, 2, 1, 1),
    (128, 24, 32, 128, 1, 0, 1, 1),
    (128, 12, 128, 64, 5, 2, 1, 1),
    (128, 6, 128, 64, 3, 1, 1, 1),
    (64, 32, 3, 192, 5, 2, 1, 1),
    (64, 32, 192, 160, 1, 0, 1, 1),
    (64, 16, 96, 192, 5, 2, 1, 1),
    (64, 8, 192, 192, 3, 1, 1, 1),
    (64, 8, 192, 10, 1, 0, 1, 1),
    (32, 32, 64, 64, 3, 1, 1, 1),
    (32, 32, 64, 128, 3, 1, 2, 1),
    (32, 32, 64, 128, 1, 0, 2, 1),
    (32, 16, 128, 128, 3, 1, 1, 1),
    (32, 8, 256, 256, 3, 1, 1, 1),
    (32, 4, 512, 512, 3, 1, 1, 1),
    (8, 14, 256, 512, 3, 1, 1, 1),
    (32, 32, 32, 32, 3, 1, 1, 32),
    (16, 32, 16, 16, 11, 5, 1, 1),
    (16, 32, 16, 16, 21, 10, 1, 1),
    (16, 64, 16, 32, 9, 4, 2, 1),
    (8, 224, 3, 96, 11, 0, 4, 1),
    (8, 224, 3, 64, 7, 3, 2, 1),
    (32, 84, 4, 32, 8, 0, 4, 1),
    (1, 64, 16, 32, 3, 1, 1, 1),
]
ENOUGH = 0.05  # seconds of work to a repetition, at most


def main() -> None:
    """Measure the grid and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=7, help="repetitions, of which the fastest counts")
    parser.add_argument("--layers", action="store_true", help="take a GPU's rows from benchmarks.layers")
    options = parser.parse_args()
    if options.layers:
        file = results.read("layers_gpu")
        return put("gpu", {key: file[key] for key in ("machine", "versions")}, from_layers(file["rows"]))
    n, rows = options.n, []
    for shape, loop, gradient in cases():
        rows.append(measure(shape, loop, gradient, n))
        print(
            *shape,
            "loop" if loop else "once",
            "gradient" if gradient else "forward",
            rows[-1]["ms"],
            flush=True,
        )
    backend = jax.default_backend()
    return put(backend, {"machine": results.machine(), "versions": results.versions()}, rows)


def from_layers(measured: list[dict]) -> list[dict]:
    """Rows of the table out of those of `benchmarks.layers`; on a GPU a loop changes nothing."""
    found: dict[tuple[int, ...], dict[str, float]] = {}
    for row in measured:
        if row.get("group") == "conv":
            *shape, algorithm = re.fullmatch(NAME, row["case"]).groups()  # type: ignore[union-attr]
            found.setdefault(tuple(map(int, shape)), {})[algorithm] = row["value"]
    made = []
    for (kernel, stride, channels, features, side, batch), ms in found.items():
        fields = (True, batch, side, side, channels, features, kernel**2, stride**2, 1)
        made += [Case("gpu", loop, *fields)._asdict() | {"ms": ms} for loop in (False, True)]
    return made


NAME = r"conv (\d+)×\d+/(\d+) (\d+)→(\d+) at (\d+)², batch (\d+), (\w+)"


def cases() -> Iterator[tuple[tuple[int, ...], bool, bool]]:
    """(shape, loop, gradient) of every row."""
    return itertools.product(GRID, (False, True), (False, True))


def put(backend: str, measured: dict, rows: list[dict]) -> None:
    """Put a backend's rows into the table, with where they were measured."""
    kept = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {"measured": {}, "rows": []}
    kept["measured"][backend] = measured
    kept["rows"] = [row for row in kept["rows"] if row["backend"] != backend] + rows
    lines = ",\n  ".join(json.dumps(row) for row in kept["rows"])
    head = json.dumps(kept["measured"], indent=1)
    TABLE.write_text(f'{{\n "measured": {head},\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


def measure(shape: tuple[int, ...], loop: bool, gradient: bool, n: int) -> dict:
    """One row of the table: the case, and milliseconds by algorithm."""
    batch, side, channels, features, kernel, edge, stride, groups = shape
    draw = np.random.default_rng(0).standard_normal
    x = jnp.asarray(draw((batch, side, side, channels)), jnp.float32)
    w = jnp.asarray(draw((kernel, kernel, channels // groups, features)), jnp.float32)
    window = Window((stride, stride), ((edge, edge), (edge, edge)), groups=groups)
    timers = {name: timer(algorithm, x, w, window, loop, gradient) for name, algorithm in ALGORITHMS.items()}
    taken = results.in_turn(timers, n)
    # The least of them: what else runs on the machine only ever adds time.
    ms = {name: 1e3 * min(values) for name, values in taken.items()}
    key = case(x.shape, w.shape, window, gradient)._replace(loop=loop)
    return key._asdict() | {"ms": {name: float(f"{value:.3g}") for name, value in ms.items()}}


def timer(algorithm, x, w, window, loop, gradient) -> Callable[[], float]:
    """A function that measures the seconds of one convolution."""

    def once(x, w):
        if not gradient:
            return algorithm(x, w, window)
        if x.shape[-1] <= 4:  # pixels of a first layer, whose gradient nobody takes
            y, back = jax.vjp(lambda w: algorithm(x, w, window), w)
        else:
            y, back = jax.vjp(lambda x, w: algorithm(x, w, window), x, w)
        return back(y)

    def many(x, w, times):
        def body(_, out):
            # Each pass hangs on the one before and its whole result is carried on, or the compiler would take
            # work out of the loop.
            return once(x, w + 1e-30 * jax.tree.leaves(out)[0].ravel()[0])

        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(once, x, w))
        return lax.fori_loop(0, times, body, zeros)

    function = jax.jit(many if loop else once, compiler_options=compiler_options())
    arguments = (x, w, jnp.int32(1)) if loop else (x, w)
    timed(function, arguments)  # compiles
    took = timed(function, arguments)
    times = int(min(50, max(1, ENOUGH / took)))
    if loop:
        arguments = (x, w, jnp.int32(times))
        return lambda: timed(function, arguments) / times
    return lambda: sum(timed(function, arguments) for _ in range(times)) / times


def timed(function, arguments) -> float:
    """Seconds until the result is there."""
    begin = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
