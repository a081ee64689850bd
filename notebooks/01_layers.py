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
# # What layers do to an image
#
# One digit goes through convolution, activation, pooling and normalization; then a network is trained, and its filters
# and feature maps are looked at; then one convolution is computed by three algorithms (the thesis's section 4.2).
#
# Expected: pictures; the three algorithms agree to rounding, and which is fastest depends on the kernel and the machine.
# Half a minute on 2 cores of an AMD EPYC. On one GPU the same cells run there; several devices change nothing here.

# %%
import os

import jax
import numpy as np

import cnnkit as ck
from cnnkit.notebook import style

smoke = bool(os.environ.get("CNNKIT_SMOKE"))
data = ck.load("digits")
image = data.test.images[3:4].astype(np.float32) / 255
edge = np.zeros((3, 3, 1, 1), np.float32)
edge[:, 0], edge[:, 2] = -1, 1

layers = {
    "conv, an edge filter": ck.conv(1, 3, padding="same"),
    "relu": ck.relu(),
    "max pool 2": ck.max_pool(2),
    "average pool 3, stride 1": ck.avg_pool(3, 1, padding="same"),
    "local response norm": ck.lrn(),
    "dropout 0.5": ck.dropout(0.5),
    "scaled tanh": ck.scaled_tanh(),
}


def through(layer, x):
    params, state, _ = layer.init(jax.random.key(0), x.shape[1:])
    if isinstance(params, dict) and "w" in params:
        params = params | {"w": edge}
    return layer.apply(params, state, x, key=jax.random.key(1), train=True)[0]


figure, axes = style.figure(9, 1.9, columns=len(layers) + 1)
shown = {"the digit": image} | {name: through(layer, image) for name, layer in layers.items()}
for ax, (name, y) in zip(axes, shown.items()):
    ax.imshow(np.asarray(y)[0, :, :, 0], cmap="gray")
    ax.set_title(name.replace(", ", ",\n"), fontsize=8)
    ax.set_axis_off()
figure

# %% [markdown]
# ## Filters and feature maps of a trained network

# %%
run = ck.Run(
    ck.nets.tiny(), data, batch=32, epochs=1 if smoke else 8, optimizer=ck.optim.sgd(ck.optim.one_cycle(0.05))
)
run.fit()

# %%
ck.notebook.look.filters(run)

# %%
ck.notebook.look.feature_maps(run, image=3)

# %% [markdown]
# ## What each pixel matters for the answer

# %%
ck.notebook.look.saliency(run)

# %% [markdown]
# ## A network with branches
#
# CUDA-CNN's network for CIFAR-10 sends its maps down two paths and concatenates what comes out of them.

# %%
ck.notebook.tour(ck.nets.cuda_cnn_cifar10(10), (24, 24, 3))

# %% [markdown]
# ## Three algorithms for one convolution
#
# Direct (XLA's own, cuDNN on a GPU), as one matrix product over unfolded windows (im2col), and by Fourier transform.
# They give the same numbers to rounding:

# %%
x = jax.random.normal(jax.random.key(2), (8, 16, 16, 8))
by = {}
for algorithm in ("direct", "matmul", "fft"):
    layer = ck.conv(16, 5, algorithm=algorithm)
    params, state, _ = layer.init(jax.random.key(3), x.shape[1:])
    by[algorithm] = layer.apply(params, state, x)[0]
for algorithm, y in by.items():
    print(f"{algorithm:<7} largest difference to direct: {abs(y - by['direct']).max():.1e}")

# %% [markdown]
# and take different times, by the kernel, the channels and the machine. What a forward and a backward pass took where the
# project's results were measured; `02_single_gpu` measures it on this machine:

# %%
from cnnkit.experiments import saved

outcome = saved.read("conv_algorithms")
outcome.figure

# %%
print(outcome)
