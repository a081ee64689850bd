"""Layers one by one beside what the machine can do: milliseconds, bytes and operations a second, and a roofline.

    python -m benchmarks.layers                        # all groups
    python -m benchmarks.layers --groups augment pool  # some
    python -m benchmarks.layers --seconds 90           # no case is begun after so long

Each case is a forward and a backward pass where layers have one, in bfloat16 on a GPU and float32 on a CPU, in a
loop inside one program. Bytes are the least that must move: every input, output and gradient once. The ceilings,
a copy and a large matrix product, are measured in the same run. Writes results/layers_gpu.json or layers_cpu.json
and draws layers_gpu.png beside it; rows of other groups stay.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import cnnkit.augment as augment
from benchmarks import results
from benchmarks.ceilings import ceilings
from cnnkit import layers, losses
from cnnkit.layers import pool as pools

Function = Callable[..., Any]


def main() -> None:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS))
    parser.add_argument("--n", type=int, default=5, help="repetitions")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--small", action="store_true", help="small shapes, to try it out; writes no file")
    options = parser.parse_args()
    begin, rows = time.perf_counter(), []
    top = ceilings()
    print(f"copy {top['bytes_per_s'] / 1e9:.0f} GB/s, product {top['flops'] / 1e12:.1f} TFLOP/s", flush=True)
    rows += [
        results.row("ceilings", "copy_gb_per_s", [top["bytes_per_s"] / 1e9], "GB/s"),
        results.row("ceilings", "product_tflops", [top["flops"] / 1e12], "TFLOP/s"),
    ]
    for group in options.groups:
        for case in GROUPS[group](options.small):
            if time.perf_counter() - begin > options.seconds:
                print(f"{case[0]}: no time left")
                continue
            try:
                rows += measure(group, *case, top=top, n=options.n)
            except Exception as error:  # one algorithm that cannot do a shape must not lose the others
                print(f"{case[0]}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    if not options.small:
        name = f"layers_{jax.default_backend()}"
        print(results.update(name, rows))
        figure(results.read(name)["rows"], results.FOLDER / f"{name}.png")


def measure(
    group: str,
    name: str,
    function: Function,
    arguments: tuple,
    work: tuple[float, float],
    *,
    top: dict,
    n: int,
) -> list[dict]:
    """Rows of one case: milliseconds, and what part of its ceiling that is.

    Args:
        group, name: of the case.
        function: whose results depend on its first argument.
        arguments: arrays.
        work: operations and bytes of one call.
        top: the ceilings.
        n: repetitions.
    """
    flops, moved = work
    floor = max(flops / top["flops"], moved / top["bytes_per_s"])
    taken = looped(function, arguments, n, floor)
    seconds = statistics.median(taken)
    more = {
        "group": group,
        "tflops": _short(flops / seconds / 1e12),
        "gb_per_s": _short(moved / seconds / 1e9),
    }
    more |= {"intensity": _short(flops / moved) if moved else 0.0, "of_ceiling": _short(floor / seconds)}
    row = results.row(name, "ms", [1e3 * s for s in taken], "ms", **more)
    print(
        f"{name:58s}", *(f"{k}={row[k]}" for k in ("value", "tflops", "gb_per_s", "of_ceiling")), flush=True
    )
    return [row]


def looped(function: Function, arguments: tuple, n: int, floor: float, enough: float = 0.02) -> list[float]:
    """Seconds of one call, n times; the mean over as many calls in a compiled loop as should last a while.

    How many they are is known to the compiler: else a GPU would ask the host after each of them.

    Args:
        function: what is called.
        arguments: arrays.
        n: repetitions.
        floor: seconds that a call takes at least.
        enough: seconds of a repetition, if calls take three times the least.
    """
    count = 2 if jax.default_backend() == "cpu" else int(min(200, max(2, enough / (3 * floor))))

    def many(first, *rest):
        def body(_, carry):
            # Each call hangs on the one before, or the compiler would take it out of the loop.
            first, _ = lax.optimization_barrier(carry)
            return first, function(first, *rest)

        out = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, first, *rest))
        return lax.fori_loop(0, count, body, (first, out))[1]

    jitted = jax.jit(many, compiler_options=layers.compiler_options())

    def once():
        begin = time.perf_counter()
        jax.block_until_ready(jitted(*arguments))
        return (time.perf_counter() - begin) / count

    once()
    return [once() for _ in range(n)]


def both(function: Function, inputs: int) -> Function:
    """A forward pass and the gradients with respect to the first so many arguments."""

    def run(*arguments):
        first = arguments[:inputs]
        y, back = jax.vjp(lambda *a: function(*a, *arguments[inputs:]), *first)
        # As from the layers after it: else the two passes of a cheap layer become one, and y is never written.
        return back(lax.optimization_barrier(y))

    return run


def _kind() -> Any:
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def _draw(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape).astype(_kind())


# batch, image, channels, features, kernel, stride: of fast94, VGG-16, ResNet-18, NIN, LeNet, and a large kernel.
CONVS = [
    (2000, 31, 24, 64, 3, 1),
    (2000, 15, 64, 256, 3, 1),
    (2000, 7, 256, 256, 3, 1),
    (256, 224, 64, 64, 3, 1),
    (256, 56, 256, 256, 3, 1),
    (256, 14, 512, 512, 3, 1),
    (256, 56, 64, 128, 3, 2),
    (512, 32, 192, 160, 1, 1),
    (512, 16, 96, 192, 5, 1),
    (2048, 12, 20, 50, 5, 1),
    (256, 32, 32, 32, 15, 1),
]


def convolutions(small: bool) -> Iterator[tuple]:
    """Convolution by each algorithm, forward and both gradients."""
    for batch, side, channels, features, kernel, stride in CONVS[:1] if small else CONVS:
        batch = 2 if small else batch
        x, w = _draw(batch, side, side, channels), _draw(kernel, kernel, channels, features, seed=1)
        for algorithm in ("direct", "matmul", "fft"):
            # Their intermediates would not fit, or the answer is known.
            if algorithm == "fft" and kernel < 5 and side > 32:
                continue
            if algorithm == "matmul" and batch * side * side * channels * kernel**2 > 4e9:
                continue
            layer = layers.conv(
                features, kernel, stride=stride, padding="same", bias=False, algorithm=algorithm
            )
            function = lambda x, w, layer=layer: layer.apply({"w": w}, (), x, train=True)[0]
            out = math.ceil(side / stride)
            flops = 3 * 2 * batch * out**2 * features * channels * kernel**2
            moved = x.dtype.itemsize * 3 * (x.size + batch * out**2 * features + w.size)
            name = f"conv {kernel}×{kernel}/{stride} {channels}→{features} at {side}², batch {batch}, {algorithm}"
            yield name, both(function, 2), (x, w), (flops, moved)


def pooling(small: bool) -> Iterator[tuple]:
    """Maximum and mean pooling, forward and backward, beside reduce_window's own gradient."""
    shapes = [(2000, 31, 64, 2, 2), (256, 112, 64, 3, 2), (256, 224, 64, 2, 2), (512, 32, 96, 3, 2)]
    for batch, side, channels, size, stride in [(2, 31, 8, 2, 2)] if small else shapes:
        x = _draw(batch, side, side, channels)
        out = (side - size) // stride + 1
        moved = x.dtype.itemsize * 2 * (x.size + batch * out**2 * channels)
        of = f"pool {size}/{stride}, {side}²×{channels}, batch {batch}"
        window = (size, size), (stride, stride), ((0, 0), (0, 0))
        whole = lambda x, window=window: pools._reduce(x, lax.max, -np.inf, *window)
        for kind, function in (
            ("max", _applied(layers.max_pool(size, stride))),
            ("reduce_window max", whole),
            ("avg", _applied(layers.avg_pool(size, stride))),
        ):
            yield f"{kind} {of}", both(function, 1), (x,), (0.0, moved)


def pointwise(small: bool) -> Iterator[tuple]:
    """Batch-norm, activations, softmax with cross-entropy: forward and backward."""
    shape = (2, 8, 8, 8) if small else (2000, 15, 15, 256)
    x = _draw(*shape)
    moved, at = x.dtype.itemsize * x.size, f"{shape[1]}²×{shape[3]}, batch {shape[0]}"
    norm = layers.batch_norm(scale=False)
    params, state, _ = norm.init(jax.random.key(0), shape[1:])
    normed = lambda x: norm.apply(params, state, x, train=True)[0]
    # The statistics need x once before it is read again, and their gradients dy likewise.
    yield f"batch_norm {at}", both(normed, 1), (x,), (0.0, 8 * moved)
    for name in ("relu", "gelu", "silu"):
        yield f"{name} {at}", both(_applied(getattr(layers, name)()), 1), (x,), (0.0, 4 * moved)
    together = layers.serial(norm, layers.gelu())
    gated = lambda x: together.apply((params, ()), (state, ()), x, train=True)[0]
    yield f"batch_norm, gelu {at}", both(gated, 1), (x,), (0.0, 8 * moved)
    rows, classes = (4, 10) if small else (65536, 1000)
    logits, labels = _draw(rows, classes), jnp.arange(rows) % classes
    entropy = lambda logits, labels: losses.cross_entropy(logits, labels, smoothing=0.1)
    took = logits.dtype.itemsize * logits.size
    yield f"softmax, cross-entropy {rows}×{classes}", both(entropy, 1), (logits, labels), (0.0, 3 * took)


def augmentation(small: bool) -> Iterator[tuple]:
    """A whole epoch's augmentation, in mini-batches as training takes them."""
    mnist, cifar = (
        ((200, 28, 28, 1), (200, 32, 32, 3)) if small else ((60_000, 28, 28, 1), (50_000, 32, 32, 3))
    )
    cases = [
        ("MNIST epoch: scale, rotate, elastic", mnist, [augment.scale(12), augment.rotate(12), augment.elastic(3.4)]),
        ("CIFAR-10 epoch: flip, crop", cifar, [augment.flip(), augment.crop(32, pad=4, outside="reflect")]),
    ]  # fmt: skip
    for name, shape, parts in cases:
        images = jax.random.bits(jax.random.key(0), shape, jnp.uint8)
        chain, batch = augment.chain(*parts), min(2000, shape[0])

        def epoch(images, chain=chain, batch=batch):
            def one(i, _):
                x = lax.dynamic_slice_in_dim(images, i * batch, batch).astype(jnp.float32) / 255
                return chain(jax.random.fold_in(jax.random.key(1), i), x).astype(_kind())

            start = jnp.zeros((batch, *images.shape[1:]), _kind())
            return lax.fori_loop(0, len(images) // batch, one, start)

        yield name, epoch, (images,), (0.0, images.size * (1 + jnp.dtype(_kind()).itemsize))


GROUPS = {"conv": convolutions, "pool": pooling, "pointwise": pointwise, "augment": augmentation}


def _applied(layer: layers.Layer) -> Function:
    return lambda x: layer.apply((), (), x, train=True)[0]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def figure(rows: list[dict], path: Any) -> Any:
    """The roofline: operations a second against operations a byte, and bytes a second of what computes nothing."""
    from cnnkit.notebook import plots, style

    top = {row["figure"]: row["value"] for row in rows if row["case"] == "ceilings"}
    peak, slope = top["product_tflops"], top["copy_gb_per_s"] / 1e3
    picture, axes = style.figure(7.4, 3.3, columns=2)
    x = np.logspace(0, 4, 50)
    axes[0].plot(x, np.minimum(peak, x * slope), color="gray", label="ceiling")
    for i, algorithm in enumerate(("direct", "matmul", "fft")):
        found = [row for row in rows if row.get("group") == "conv" and row["case"].endswith(algorithm)]
        points = [row["intensity"] for row in found], [row["tflops"] for row in found]
        axes[0].plot(*points, "o^s"[i], color=style.COLORS[i], markersize=4, label=algorithm)
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    style.label(axes[0], "operations a byte", "TFLOP/s", "convolutions, forward and backward")
    style.legend(axes[0])
    rest = [row for row in rows if row.get("group") not in (None, "conv")]
    at = np.arange(len(rest))
    axes[1].barh(at, [row["gb_per_s"] for row in rest], 0.6, color=style.COLORS[0])
    axes[1].axvline(top["copy_gb_per_s"], color="gray")
    axes[1].set_yticks(at, [row["case"].partition(", batch")[0] for row in rest])
    axes[1].tick_params(axis="y", labelsize=5)
    axes[1].invert_yaxis()
    style.label(axes[1], "GB/s", title="the rest; gray: a copy")
    if path is not None:
        plots.save(picture, path)
    return picture


if __name__ == "__main__":
    main()
