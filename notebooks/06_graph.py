# %% [markdown]
# # The graph: what may run at once, and the scheduler that runs it
#
# The thesis finds parallelism in a bipartite graph of operations and blobs, and runs it on one task queue and thread
# pool for each kind of hardware (section 5.4). Here are the graph of a network's training step, its critical path, what
# ran when in a scheduled step, and what queues and pools save over a thread for each task.
#
# Expected, on a 2-core AMD EPYC (n = 5): the graph of LeNet's step, 35 operations, leaves two threads nothing to gain,
# 0.99 ± 0.08 times; that of an inception network, 151 operations and up to 32 at once, lets them be 1.12 ± 0.10 times
# as fast as one. An empty operation takes 3.9 ± 0.7 µs in queues and pools, 145 ± 3 µs in a thread of its own. Half a
# minute.
#
# | where | command |
# | --- | --- |
# | this notebook's size, a CPU | `cnnkit reproduce scheduler --preset small` |
# | larger mini-batches, longer tasks | `cnnkit reproduce scheduler --preset full` |
# | queues and pools beside Dask | `python -m benchmarks.scheduler` |
#
# One machine's threads are what it is about: several GPUs or machines change nothing.

# %%
import os

import jax
import jax.numpy as jnp

import cnnkit as ck

smoke = bool(os.environ.get("CNNKIT_SMOKE"))
paths = [ck.serial(ck.conv(8, size, padding="same"), ck.relu()) for size in (3, 5)]
net = ck.serial(ck.conv(8, 5), ck.branch(*paths), ck.max_pool(2), ck.dense(10))
shape, batch = (28, 28, 1), 4 if smoke else 32


def loss(y, labels):
    return ck.losses.cross_entropy(y, labels).mean()


graph = ck.graph.from_net(net, shape, batch, loss, update=lambda weight, gradient: weight - 0.01 * gradient)
params, state, _ = net.init(jax.random.key(0), shape)
images = jax.random.normal(jax.random.key(1), (batch, *shape))
feeds = graph.feeds(params, state, images, jnp.arange(batch) % 10, jax.random.key(2))
costs = ck.graph.measure(graph, feeds)
picture = ck.notebook.draw(graph, costs)
picture.colors = 64
picture

# %% [markdown]
# Each operation stands below all that it waits for, with its measured time; thick edges are the critical path, the
# longest chain, which no number of threads makes shorter. An exchange and an update hang on each parameter's gradient.
# 1/0/0 and 1/1/0 are the convolutions of the branch's two paths.

# %%
milliseconds = {name: 1e3 * seconds for name, seconds in costs.items()}
print("In ms:", ck.graph.analyse(graph, milliseconds))

# %% [markdown]
# ## What ran when
#
# The exchanges are on the network's queue, everything else on the device's. Here a LeNet's step over an imagined link of
# 100 Mbit/s between two workers: the exchange of the last layer, which has most of the parameters and whose gradient comes
# first, runs beside the back-propagation through the others.

# %%
from cnnkit.experiments import wait_free

case = {"net": "linear" if smoke else "lenet", "link": (2, 1e8)}
ck.notebook.gantt(wait_free.timeline(case, depth=1, shown=1))

# %% [markdown]
# ## Threads made once, or one for each task
#
# Left: the speed-up that the graphs of two networks allow, and what two threads for computing make of it. XLA spreads
# large operations over the cores by itself, so that on a CPU little is left to gain. Right: the time an operation takes by
# the work that is in it.

# %%
outcome = ck.experiments.reproduce("scheduler", "smoke" if smoke else "small")
outcome.figure

# %%
print(outcome)
