# %% [markdown]
# # The period: accuracy against k
#
# Each worker takes k local steps, then all exchange (the thesis's fetch_i, section 5.3.2). Here k goes from 1 to
# 32 at the same number of examples, in both modes: `accumulate` keeps the weights fixed between two exchanges, as
# the thesis does, and `local` lets each worker take its own optimizer steps and averages.
#
# Expected, on a 2-core AMD EPYC with 4 virtual workers and the bundled digits (medians of n = 3 seeds, last epoch):
# `local` stays at 97.2 ± 0.7 % for k = 1 and 97.2 ± 0.3 % for k = 32; `accumulate` falls from 97.2 ± 0.8 % to
# 95.0 ± 1.1 % at k = 8 and 87.5 ± 3.0 % at k = 32. Two minutes, most of it compiling.
#
# | where | command |
# | --- | --- |
# | this notebook's size, a CPU | `cnnkit reproduce fetch_period --preset small` |
# | one GPU | `cnnkit reproduce fetch_period workers=1 --preset full` (accumulate alone tells something) |
# | several GPUs, MNIST | `cnnkit reproduce fetch_period workers=4 --preset full` |
# | several machines | `srun cnnkit reproduce fetch_period workers=None --preset full` on each |

# %%
import os

import cnnkit as ck

preset = "smoke" if os.environ.get("CNNKIT_SMOKE") else "small"
outcome = ck.experiments.reproduce("fetch_period", preset)
outcome.figure

# %% [markdown]
# Above: what a period costs in accuracy, and what it saves in time, by medians over the seeds; then the curves, each the
# mean with a band of one standard deviation.

# %% [markdown]
# ## The same trainings against time
#
# An exchange costs the same whatever k is, so longer periods reach the same number of examples sooner. On two cores
# that share four workers the difference is the cost of starting and ending rounds; over a real link it is the link's.

# %%
from cnnkit.experiments import accuracy

accuracy.curves(outcome.rows, "seconds")

# %% [markdown]
# ## Why accumulate falls and local does not
#
# At the same number of examples, `accumulate` takes one optimizer step where synchronous training takes k. Exchanges
# are the only steps it has:

# %%
for case in ("local", "accumulate"):
    for r in outcome.rows:
        if r["case"].startswith(case) and r["figure"] == "accuracy":
            exchanges = accuracy.value(outcome.rows, r["case"], "exchanges")["value"]
            print(
                f"{r['case']:<22} {exchanges:>6.0f} exchanges  {r['value']:6.2f} ± {r['spread']:.2f} % (n = {r['n']})"
            )

# %% [markdown]
# ## The table

# %%
print(outcome)
