# %% [markdown]
# # A cluster on cheap links
#
# Four nodes on this machine, each a process in a network namespace of its own, joined by links of a chosen rate (the
# thesis's section 5.6.2). Synchronous training exchanges after every step; with fixed periods, warm start, delay and
# `hide` there are fewer exchanges, or they run beside the computing.
#
# Expected, on a 2-core AMD EPYC, four nodes whose steps are 36 ms of waiting and 6 ms of work, a network of a million
# parameters (n = 3 windows): where synchronous training has 0.442 ± 0.015 of one node, `hide` has 3.73 ± 0.07 of one, 8.43 ±
# 0.15 times as much, and reaches 95 % test accuracy 6.8 ± 1.0 times sooner (n = 3 seeds). At 100 Mbit/s it is 14.2 ± 0.4 times
# synchronous training. What is shown was measured by `python -m benchmarks.cluster`, in half an hour; the small preset
# takes ten minutes.
#
# | where | command |
# | --- | --- |
# | a CPU with Linux's network namespaces | `cnnkit reproduce cluster --preset small`, or `MEASURE = True` below |
# | other nodes and links | `cnnkit reproduce cluster 'nodes=[1, 2, 8]' 'rates=["10gbit", "50mbit"]'` |
# | GPUs of one machine, one a node, real work | `cnnkit reproduce cluster --preset full` |
# | machines of your own, over the links they have | `srun cnnkit reproduce cluster --preset full` on each |
# | any script on such a cluster | `cnnkit lab --nodes 4 --rate 100mbit -- python train.py` |
#
# The first, second, third and last need `pip install -e '.[lab]'`. One GPU has nobody to talk to. Without namespaces (macOS,
# Windows, some containers) the saved results are shown.

# %%
import os

import cnnkit as ck
from cnnkit.experiments import saved

MEASURE = False  # True measures it here
smoke = bool(os.environ.get("CNNKIT_SMOKE"))
try:
    measured = (
        ck.experiments.reproduce("cluster", "smoke" if smoke else "small") if MEASURE or smoke else None
    )
except (OSError, ImportError) as error:
    measured = print(error)
outcome = measured or saved.read("cluster")
outcome.figure

# %% [markdown]
# Above: throughput over one node's, for each link; four is the most there can be. `sync47` is the link at which the cost
# model gives synchronous training 0.47 of one node, the thesis's figure: here 187.7 Mbit/s. Beside it accuracy against time on that link. Below: what
# the cost model, fitted to one node and two, makes of more; dots were measured, lines were not.
#
# ## The table

# %%
print(outcome)

# %% [markdown]
# ## The thesis's two figures
#
# Synchronous training on four nodes ran at 47 % of one node, and training with periods at 12.34 times that. The two together
# are 0.47 × 12.34 = 5.8 nodes' worth from four. With one worker a node that cannot be; its nodes held several GPUs, or the
# two have different baselines. So here they are two links: `sync47`, and one slow enough for 12.34 times.
#
# ## What a period must be to hide an exchange
#
# `hide` takes the smallest k whose computing lasts as long as the exchange. With steps of 40 ms and a million floats:

# %%
from cnnkit.parallel.cost import Link
from cnnkit.parallel.traffic import sent_bytes

for rate in (1e10, 1e9, 1e8):
    for nodes in (2, 4, 1000):
        exchange = Link(rate).seconds(sent_bytes(1_069_000, nodes))
        view = ck.fetch.RoundView(nodes, speeds=(1 / 0.04,) * nodes, exchange_seconds=exchange, delay=1)
        k = ck.fetch.hide()(view)[0]
        print(
            f"{nodes:>4} nodes at {rate / 1e6:>6,.0f} Mbit/s: an exchange takes {1e3 * exchange:6.1f} ms, k = {k}"
        )

# %% [markdown]
# ## A cluster in a cell
#
# The same nodes and links for any script, with faults if you like: `c.set_rate`, `c.cut`, `c.freeze`, `c.kill`. What the
# links carry, where they can be made:

# %%
from cnnkit.lab import check

try:
    with ck.lab.cluster(nodes=4, rate="100mbit", gpus=False) as c:
        for name, link in zip(c.names, check.measure(c, 1.0)):
            print(f"{name}: {link['rate'] / 1e6:.1f} Mbit/s, round trip {1e6 * link['round_trip']:.0f} µs")
except (OSError, ImportError) as error:
    print(error)
