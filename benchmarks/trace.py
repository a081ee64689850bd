"""A training step taken apart, from a trace of a real run: by kind of operation, by layer, and the longest operations.

    python -m benchmarks.trace vgg16@256 resnet18@256       # the steps of benchmarks.core
    python -m benchmarks.trace fast94                       # that of a fast training

A step is augmentation, forward, backward and optimizer, compiled by itself. Prints tables, and draws
results/trace_NET_gpu.png.
"""

import argparse
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import core, results
from cnnkit.notebook import plots, traced
from cnnkit.train.task import MiniBatch, Task


def main() -> None:
    """Trace and print each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("nets", nargs="+", help="as in benchmarks.core, or fast94, fast96")
    parser.add_argument("--top", type=int, default=16, help="operations listed")
    parser.add_argument("--batch", type=int, help="another batch")
    options = parser.parse_args()
    for net in options.nets:
        try:
            show(net, options)
        except Exception:  # the other networks are still traced
            traceback.print_exc(limit=-2)


def show(net: str, options: argparse.Namespace) -> None:
    """One network's tables and figure."""
    task, shape, batch, classes = found(net)
    batch = options.batch or batch
    model = jax.jit(lambda: task.init(jax.random.key(0), shape))()
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (batch, *shape), np.uint8)
    labels, ones = draw.integers(0, classes, batch, np.int32), np.ones(batch, np.float32)
    given = MiniBatch(images, labels, ones, jax.random.key(1), np.arange(batch, dtype=np.int32), np.int32(0))

    def step(model, batch):
        grads, state, sums = task.gradient(model, batch)
        lr, momentum = jnp.float32(0.01), jnp.float32(0.6)
        return task.descend(model._replace(state=state), grads, sums.examples, lr, momentum)

    ops = traced.trace(step, *jax.device_put((model, given)))
    whole = sum(op.seconds for op in ops)
    print(
        f"{net}, batch {batch}: {1e3 * whole:.3f} ms of operations in a step, {sum(op.calls for op in ops):.0f} of them"
    )
    for kind, seconds in traced.by_kind(ops).items():
        print(f"  {kind:<18} {1e3 * seconds:9.3f} ms  {100 * seconds / whole:5.1f} %")
    for layer, (forward, backward) in traced.by_layer(ops).items():
        print(f"  {layer:<18} {1e3 * forward:9.3f} ms forward {1e3 * backward:9.3f} ms backward")
    for op in ops[: options.top]:
        print(f"  {1e3 * op.seconds:9.3f} ms  {op.name[:40]:<40} {op.source[-90:]}", flush=True)
    name = f"trace_{net.replace('@', '_')}_{jax.default_backend()}.png"
    plots.save(traced.figure(ops), results.FOLDER / name)


def found(net: str) -> tuple[Task, tuple[int, ...], int, int]:
    """What is trained, on images of which shape, in which batch, of how many classes."""
    half = jax.default_backend() != "cpu"
    if net.startswith("fast"):
        import cnnkit as ck
        from cnnkit.experiments import fast_cifar10

        batch = fast_cifar10.RECIPES[net]["batch"]
        blank = np.zeros((2 * batch, 32, 32, 3), np.uint8)  # a fifth of it becomes the test part
        blank[::2] = 255
        data = ck.from_arrays(blank, np.arange(2 * batch) % 10, name="blank")
        run: Any = fast_cifar10.recipe(net, data, dtype="bfloat16" if half else "float32")
        return run.task.at(run.epochs - 1), (32, 32, 3), batch, 10
    from cnnkit import losses, nets
    from cnnkit.train.optim import sgd
    from cnnkit.train.task import DTYPES

    shape, batch, _, classes = core.case(net)
    mean, std = np.float32([0.5] * shape[-1]), np.float32([0.25] * shape[-1])
    dtype = DTYPES["bfloat16" if half else "float32"]
    made = nets.NAMES[net.partition("@")[0]](classes)
    return Task(made, sgd(0.01), None, losses.cross_entropy, mean, std, *dtype), shape, batch, classes


if __name__ == "__main__":
    main()
