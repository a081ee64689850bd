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
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import results
from benchmarks.ceilings import ceilings
from benchmarks.layer_cases import GROUPS, Function
from cnnkit import layers


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
    rest = [row for row in rows if row.get("group") not in (None, "conv", "narrow")]
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
