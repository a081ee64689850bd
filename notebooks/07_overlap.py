# %% [markdown]
# # Overlap: exchanges and loading hidden behind computing
#
# The paper (Li et al. 2018) computes gradients while parameters travel, compares forms of the exchange, and loads data
# ahead with asynchronous copies. Here each of the three is switched on and off.
#
# Expected, on a 2-core AMD EPYC with two processes joined by links of 100 Mbit/s (n = 3), computing as long as
# exchanging: one after the other, a step with `psum` takes 2.01 ± 0.07 times the longer of the two; hidden behind its
# own step 1.45 ± 0.02 times, and hidden behind the next step too 1.17 ± 0.01 times; other exchanges gain about as much.
# `psum` exchanges LeNet's parameters in 174 ± 8 ms, `server` in 280 ± 2 ms. From disk, the device waits for 0.6 ± 0.7 %
# of the time with preload and asynchronous copy, and for 48.6 ± 0.7 % with neither. Three minutes.
#
# | where | command |
# | --- | --- |
# | this notebook's size, a CPU | `cnnkit reproduce overlap --preset small` |
# | two and four workers | `cnnkit reproduce overlap --preset full` |
# | other links | `cnnkit reproduce overlap rate=1gbit --preset small` |
# | a GPU's loading | `python -m benchmarks.stream --real --batch 128 --images 8192 --name stream_gpu` |
#
# On GPUs one program overlaps by itself what is in it: there `Run(…, delay=1)` hides the exchange, see `08_cluster`.

# %%
import os

import cnnkit as ck

preset = "smoke" if os.environ.get("CNNKIT_SMOKE") else "small"
outcome = ck.experiments.reproduce("overlap", preset)
outcome.figure

# %% [markdown]
# A black line is the longer of computing and exchanging: no step can be shorter. Where one operation runs after the other,
# a step takes both. Wait-free back-propagation starts each parameter's exchange as soon as its gradient exists, which hides
# it behind the back-propagation of its own step, though not behind the forward pass. The next step's forward pass in turn
# needs no more than the first layers' parameters to begin: with large parameters in pieces, and the first layers' let go
# before, the rest hides there. The numbers are those of synchronous training in every case.
#
# ## What ran when
#
# Two steps, the second paler, over an imagined link:

# %%
from cnnkit.experiments import wait_free

case = {"net": "linear" if preset == "smoke" else "lenet", "link": (2, 1e8)}
ck.notebook.gantt(wait_free.timeline(case))

# %% [markdown]
# ## The table

# %%
print(outcome)
