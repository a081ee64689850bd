# %% [markdown]
# # CIFAR-10: the works' networks and their relatives
#
# CUDA-CNN's network for CIFAR-10 (the thesis's, its authors' claim is 87 %), Purine's network in network (89.6 % in its
# read-me) and its small inception network, beside ResNet-18. Their recipes take 800 epochs of CUDA-CNN and 128 of Purine, in
# stages; here rates rise and fall once over 30 to 100. Optimizer, rate and weight decay were chosen on held-out training
# images; the last epoch counts.
#
# Expected, of the small size, in which CUDA-CNN's network sees 2,000 images six times: 34.4 % of 1,000 test images, 37.2 %
# by ten views of each (n = 1). Of all of CIFAR-10 on an H200: CUDA-CNN's network 85.9 ± 0.2 %, 87.9 ± 0.3 % by ten views;
# network in network by Muon 91.1 ± 0.2 %, through two workers 91.3 ± 0.3 %; ResNet-18 95.1 ± 0.1 % (medians, n = 3); the
# tables below are of it. A minute.
#
# | where | command |
# | --- | --- |
# | CUDA-CNN's network on 2,000 images, a CPU | `cnnkit reproduce cifar10_accuracy --preset small` |
# | one GPU, all networks | `python -m benchmarks.accuracy cifar10 --preset full` |
# | two workers, local steps, three seeds | `python -m benchmarks.accuracy cifar10 --workers 3 --case nin_cifar10`, by turns on one device; the 3 are seeds |
# | several GPUs | `cnnkit train nin_cifar10 --data cifar10 --workers 4 --fetch 'warm_start(1, 8, epochs=1)'` |
# | several machines | `srun cnnkit train nin_cifar10 --data cifar10 --fetch 'warm_start(1, 8, epochs=1)'` on each |

# %%
import os

import cnnkit as ck
from cnnkit.experiments import base, mistakes

smoke = bool(os.environ.get("CNNKIT_SMOKE"))
found = mistakes.kept("cifar10_accuracy", small=smoke)
base.find("cifar10_accuracy").figure(found["rows"])

# %% [markdown]
# Above, from the file of what was measured: every seed, and the median as a bar; the training accuracies beside it, with
# augmentation, as training sees its images. Below: the table, then what was chosen on held-out images.

# %%
print(mistakes.told(found))

# %%
print(mistakes.choices(found["rows"]))

# %% [markdown]
# ## The networks
#
# CUDA-CNN's network splits after its second pooling: a wide dense path and a deep convolutional one, brought together before
# the last layer. Its own text file says so with a BRANCHLAYER and a COMBINELAYER; `ck.nets.from_cuda_cnn` reads it.

# %%
print(ck.summary(ck.nets.cuda_cnn_cifar10(), (24, 24, 3)))

# %% [markdown]
# ## The original stages
#
# The rates of CUDA-CNN's recipe, 50 epochs each, and how many epochs they make; to train by them:
# `ck.Run(ck.nets.cuda_cnn_cifar10(), data, batch=128, epochs=800, optimizer=original, augment=…)`.

# %%
rates = [0.005, 0.004, 0.003, 0.002, 0.001, *(n * 1e-4 for n in range(9, 0, -1)), 1e-5, 1e-6]
original = ck.optim.sgd(ck.optim.stages(*((rate, 50) for rate in rates)), momentum=0.9)
print(
    f"{50 * len(rates)} epochs, the last rate {original.rates(50 * len(rates) - 1, 50 * len(rates))[0]:.0e}"
)

# %% [markdown]
# ## A small training to watch
#
# The bundled digits in place of CIFAR-10, by a small network with the same crops and one rise and fall of the rate.

# %%
digits = ck.load("digits")
net = ck.serial(ck.dense(10)) if smoke else ck.nets.tiny()
run = ck.Run(
    net,
    digits,
    batch=64,
    epochs=2 if smoke else 8,
    optimizer=ck.optim.sgd(ck.optim.one_cycle(0.05), nesterov=True),
    augment=ck.augment.crop(8, pad=1),
)
run.fit()

# %%
ck.plots.curves(run)
