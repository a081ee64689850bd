# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One device: where the time goes
#
# The thesis's sections 4.2 to 4.8, on whatever device is there: convolution by three algorithms, pooling, softmax,
# augmentation, and a training step taken apart by a trace of a real run.
#
# Expected, whatever the machine: the Fourier transform takes about the same time for every kernel size, so it wins for
# large kernels, and on a CPU, where those of small images are products with matrices, already for 5×5 over many channels;
# max-pooling over 2×2 pixels is many times faster with its gradient written out, and over windows that overlap a little;
# the two convolutions take more than half of LeNet's step. About two minutes on 2 cores. On a GPU the same cells run
# there, with the sizes a GPU needs.
#
# | where | command |
# | --- | --- |
# | the first section alone, a CPU | `cnnkit reproduce conv_algorithms --preset small` |
# | the same in a GPU's size | `cnnkit reproduce conv_algorithms --preset full` |
# | every layer beside the card's ceilings | `python -m benchmarks.layers` |
# | training speed beside PyTorch and Flax | `python -m benchmarks.core` |
# | whole trainings on CIFAR-10, as fast as one GPU goes | `cnnkit reproduce fast_cifar10 --preset full` |

# %%
import os

import cnnkit as ck

smoke = bool(os.environ.get("CNNKIT_SMOKE"))
outcome = ck.experiments.reproduce("conv_algorithms", "smoke" if smoke else "small")
outcome.figure

# %% [markdown]
# `algorithm="auto"` looks up the measured case nearest to a layer's shapes and takes what was fastest there.
#
# ## Pooling
#
# The gradient of a maximum goes to the pixel that was it. The compiler finds that pixel again in the backward pass and
# adds to it one by one; written out, the forward pass keeps its place in one byte, and the backward pass is a choice
# among shifted copies.

# %%
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cnnkit.notebook import style

gpu = jax.default_backend() != "cpu"


def milliseconds(function, *arguments, n=5):
    jitted = jax.jit(function)
    jax.block_until_ready(jitted(*arguments))
    taken = []
    for _ in range(n):
        begin = time.perf_counter()
        jax.block_until_ready(jitted(*arguments))
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken)


def gradient(function):
    return lambda x: jax.grad(lambda x: jnp.square(function(x)).sum())(x)


def compilers_own(size, stride):
    window = (1, size, size, 1), (1, stride, stride, 1), "VALID"
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *window)


x = jax.random.normal(jax.random.key(0), (2 if smoke else 1000 if gpu else 64, 32, 32, 32))
found = {}
for size, stride in ((2, 2), (3, 2)):
    layer = ck.max_pool(size, stride)
    written = lambda x, layer=layer: layer.apply((), (), x, train=True)[0]
    found[f"{size}×{size} / {stride}, written out"] = milliseconds(gradient(written), x)
    found[f"{size}×{size} / {stride}, the compiler's"] = milliseconds(
        gradient(compilers_own(size, stride)), x
    )

figure, (ax,) = style.figure(5.5, 1.8)
ax.barh(list(found), list(found.values()), color=style.COLORS[:2])
ax.invert_yaxis()
style.label(ax, f"forward and backward (ms), {len(x)} images of 32×32×32", title="max-pooling")
figure

# %% [markdown]
# ## Softmax with cross-entropy
#
# As one expression, from the logits: nothing overflows, and the gradient is the softmax less the target. Softmax first
# and its logarithm after loses what is below the smallest number.

# %%
from cnnkit import losses

logits, labels = jnp.array([[90.0, -20.0, 0.0], [2.0, 1.0, 0.0]]), jnp.array([1, 0])
apart = -jnp.log(jax.nn.softmax(logits))[jnp.arange(2), labels]
print("together:", np.asarray(losses.cross_entropy(logits, labels)).round(4))
print("apart:   ", np.asarray(apart).round(4))
slope = jax.grad(lambda logits: losses.cross_entropy(logits, labels).sum())(logits)
target = jax.nn.one_hot(labels, 3)
print("gradient off softmax − target by at most", float(abs(slope - (jax.nn.softmax(logits) - target)).max()))

# %% [markdown]
# ## Augmentation
#
# On the device, inside the training's program: random numbers, one resampling for any chain of scale, rotation and
# elastic distortion, one move for flips and crops.

# %%
count = 64 if smoke else 60_000 if gpu else 6_000
chains = {
    "MNIST: scale, rotate, elastic": (
        (28, 28, 1),
        ck.augment.chain(ck.augment.scale(12), ck.augment.rotate(12), ck.augment.elastic(3.4)),
    ),
    "CIFAR-10: flip, crop": (
        (32, 32, 3),
        ck.augment.chain(ck.augment.flip(), ck.augment.crop(32, pad=4, outside="reflect")),
    ),
}
for name, (shape, chain) in chains.items():
    images = jax.random.uniform(jax.random.key(0), (count, *shape))
    took = milliseconds(lambda x, chain=chain: chain(jax.random.key(1), x), images, n=3)
    print(f"{name:<32} {took:8.2f} ms for {count:,} images")

# %% [markdown]
# ## A training step, taken apart
#
# LeNet on enlarged digits. The program runs under the profiler, and the compiler says which layer each of its
# operations was made of; where it made one operation out of several layers, as of pooling's backward pass and the
# rectifier's, the time stands at one of them.

# %%
from cnnkit.experiments.fast_cifar10 import enlarged
from cnnkit.notebook import traced
from cnnkit.train.loop import lay_out
from cnnkit.train.step import Source, mini_batch

data = enlarged(ck.load("digits"), 4)
run = ck.Run(ck.nets.lenet(), data, batch=16 if smoke else 128, augment=ck.augment.rotate(12))


def step(model, batch):
    grads, state, sums = run.task.gradient(model, batch)
    return run.task.descend(model._replace(state=state), grads, sums.examples, 0.02, 0.9)


ops = traced.trace(step, run.model, mini_batch(Source(*data.train), lay_out(run, 0), 0))
traced.figure(ops)

# %%
for op in ops[:8]:
    print(f"{1e3 * op.seconds:8.3f} ms  {op.kind:<18}  {op.layer or 'rest':<10} {op.name}")

# %% [markdown]
# ## What a GPU needs beyond that
#
# Many steps in one program, so that the host is not waited for: `dispatch="epoch"` makes an epoch one. The data on the
# device, as bytes. bfloat16 for the large products, with weights in float32: `dtype="bfloat16"`. Buffers handed on from
# step to step, not copied. And compiled programs kept on disk: `ck.keep_compiled()`. `nets.fast94` and its recipe have
# it all:

# %%
from cnnkit.experiments.fast_cifar10 import recipe

small = data.take(train=64, test=64) if smoke else data
fast = recipe(
    "fast94", small, dtype="float32", widths=(4, 8, 8) if smoke else (8, 16, 16), batch=32, epochs=3
)
fast.fit(panel=False)
print(fast)
