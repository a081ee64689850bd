"""Where the time of a fast training goes, for several variants of it: milliseconds a step by part, and accuracy.

    python -m benchmarks.fast --n 5
    python -m benchmarks.fast --variants "" "activation=silu" "batch=1000 lr=0.2" "@xla_gpu_enable_triton_gemm=False"
    python -m benchmarks.fast --net fast96 --variants "epochs=29" "epochs=32 sides=((24,8),(28,8))" --n 4 --parts 0 --write

A variant is settings of the recipe, and after @ compiler options. Accuracies are those on a tenth of the training
images, held out: by them a recipe may be chosen, which the test images must not do. Parts are measured one by one, each in a loop
of its own: augmentation, forward and backward without it, the optimizer, and one evaluation with its views; what
a whole step takes beyond their sum is what they hinder one another. Prints a table, and writes
results/fast_gpu.json with --write. A variant that fails is told, and the next one goes on.
"""

import argparse
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from benchmarks.accuracy_time import _setting


def main() -> None:
    """Measure each variant and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--net", default="fast94")
    parser.add_argument("--variants", nargs="*", default=[""], help="settings, and options after @")
    parser.add_argument("--n", type=int, default=3, help="trainings of each")
    parser.add_argument("--parts", type=int, default=1, help="0 leaves the parts out, and warming up")
    parser.add_argument("--take", type=int, help="training images, all when left out")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=1e9, help="no variant is begun after so long")
    parser.add_argument("--write", action="store_true", help="write the file")
    options = parser.parse_args()
    begin, rows = time.perf_counter(), []
    head = ("variant", "accuracy", "±", "seconds", "compile", "step", *PARTS, "eval ms")
    print(" | ".join(head), flush=True)
    for text in options.variants:
        if time.perf_counter() - begin > options.seconds:
            print(f"{text}: no time left")
            continue
        try:
            rows += measure(text, options)
        except Exception:  # whatever a variant cannot do, the others are measured
            traceback.print_exc(limit=-3)
    if options.write and rows:
        print(results.update(f"fast_{jax.default_backend()}", rows))


PARTS = ("augment", "gradient", "optimizer")


def measure(text: str, options: argparse.Namespace) -> list[dict]:
    """The rows of one variant, with its line of the table printed."""
    import cnnkit as ck
    from cnnkit.experiments import fast_cifar10
    from cnnkit.layers import compiled

    words = text.split()
    changes = dict(_setting(word) for word in words if not word.startswith("@"))
    compiled.GPU.clear()
    compiled.GPU.update(_setting(word[1:]) for word in words if word.startswith("@"))
    whole = ck.load("cifar10").take(train=options.take).hold_out(0.1)
    assert whole.held_out is not None
    data = ck.from_arrays(*whole.train, *whole.held_out, name="cifar10_held_out", classes=whole.classes)
    run = fast_cifar10.recipe(options.net, data, dtype=options.dtype, **changes)
    accuracy, seconds, compiling = fast_cifar10.timed(run, options.n, warm=bool(options.parts))
    percent = [100 * a for a in accuracy]
    steps = run.mini_batches * run.epochs
    found = {"step": 1e3 * run.history[-1]["train_seconds"] / run.mini_batches}
    found |= {part: made(run) for part, made in MEASURES.items()} if options.parts else {}
    evaluate = 1e3 * run.history[-1]["evaluate_seconds"]
    spread = statistics.stdev(percent) if len(percent) > 1 else 0.0
    told = [
        text or "as it is", f"{np.mean(percent):.3f}", f"{spread:.3f}", f"{np.median(seconds):.3f}",
        f"{compiling:.1f}", *(f"{found.get(part, float('nan')):.3f}" for part in ("step", *PARTS)),
        f"{evaluate:.1f}",
    ]  # fmt: skip
    print(" | ".join(told), flush=True)
    name = f"{options.net} {text}".strip()
    mean = float(f"{np.mean(percent):.5g}")
    accuracies = results.row(name, "held_out_accuracy", percent, "%", mean=mean, steps=steps)
    if not options.parts:  # for a choice: of its times nothing is told, whatever ran beside it
        return [accuracies]
    return [
        accuracies,
        results.row(name, "seconds", seconds, "s"),
        results.row(name, "compile_seconds", [compiling], "s"),
        results.row(name, "evaluate_ms", [evaluate], "ms"),
        *(results.row(name, f"{part}_ms", [value], "ms") for part, value in found.items()),
    ]


def looped(run: Any, once: Callable[[Any, Any, Any], Any], carry: Any) -> float:
    """Milliseconds of ``once(carry, batch, i)`` in a loop over the first epoch's mini-batches."""
    from cnnkit.layers import compiler_options, in_loop
    from cnnkit.train.loop import lay_out
    from cnnkit.train.step import mini_batch

    run.ahead = None
    plan, source = jax.device_put(lay_out(run, 0)), run.engine.source

    def loop(carry, source, plan):
        with in_loop():
            body = lambda i, carry: once(carry, mini_batch(source, plan, i), i)
            return jax.lax.fori_loop(0, len(plan.index), body, carry)

    function = jax.jit(loop, compiler_options=compiler_options())
    jax.block_until_ready(function(carry, source, plan))
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(function(carry, source, plan))
        taken.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(taken) / run.mini_batches


def augment(run: Any) -> float:
    """Of taking a mini-batch from the images and augmenting it."""
    task = run.task.at(run.epochs - 1)
    shape = jax.eval_shape(task.inputs, jax.ShapeDtypeStruct((run.batch, *run.data.shape), jnp.uint8))
    # The sum keeps every pixel needed; all of them are written, as in a step.
    return looped(
        run, lambda x, batch, i: task.augmented(batch, batch.key), jnp.zeros(shape.shape, shape.dtype)
    )


def gradient(run: Any) -> float:
    """Of the forward and the backward pass, on one mini-batch that lies there."""
    task, model = run.task, run.model
    x = jax.random.normal(jax.random.key(0), (run.batch, *run.data.shape)).astype(task.dtype)

    def once(carry, batch, i):
        grads, state = carry

        def objective(params):
            # Each pass hangs on the one before, or the compiler would take it out of the loop.
            moved = x + jax.tree.leaves(grads)[0].ravel()[0].astype(x.dtype) * 1e-9
            logits, new = task.logits(params, state, moved, batch.key, train=True)
            return (task.loss(logits, batch.labels) * batch.weight).sum(), new

        return jax.grad(objective, has_aux=True)(model.params)

    zeros = jax.tree.map(jnp.zeros_like, model.params)
    return looped(run, once, (zeros, model.state))


def optimizer(run: Any) -> float:
    """Of the optimizer's step."""
    task, model = run.task, run.model
    grads = jax.tree.map(lambda w: jax.random.normal(jax.random.key(1), w.shape), model.params)
    once = lambda model, batch, i: task.descend(
        model, grads, batch.weight.sum(), jnp.float32(1e-3), jnp.float32(0.6)
    )
    return looped(run, once, model)


MEASURES = {"augment": augment, "gradient": gradient, "optimizer": optimizer}


if __name__ == "__main__":
    main()
