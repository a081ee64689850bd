# %% [markdown]
# # Warm start: short periods first
#
# Weights change fast early in training, so early exchanges matter most. Warm start (热启动, the thesis's section
# 5.3.4) begins with a short period and lets it grow: `warm_start(1, 32, epochs=6)` doubles k at equal intervals from
# 1 to 32 over six epochs, then stays there.
#
# Expected, on a 2-core AMD EPYC with 4 virtual workers and the bundled digits (medians of n = 3 seeds): in
# `accumulate`, the third epoch ends at 94.2 ± 0.3 % with warm start, 42 ± 4 % at a constant k = 32, 80.3 ± 5.0 % at
# k = 8 and 96.7 ± 1.0 % at k = 1; the last epoch at 95.6 ± 0.4 % after 97 exchanges, where k = 1 needs 540 for
# 97.2 ± 0.8 %. In `local`, warm start ends at 97.5 ± 0.6 %, where k = 1 has 97.2 ± 0.7 %. A minute and a half.
#
# | where | command |
# | --- | --- |
# | this notebook's size, a CPU | `cnnkit reproduce warm_start --preset small` |
# | one GPU | `cnnkit reproduce warm_start workers=1 'modes=["accumulate"]' --preset full` |
# | several GPUs, MNIST | `cnnkit reproduce warm_start workers=4 --preset full` |
# | several machines | `srun cnnkit reproduce warm_start workers=None --preset full` on each |

# %%
import os

import cnnkit as ck

preset = "smoke" if os.environ.get("CNNKIT_SMOKE") else "small"
outcome = ck.experiments.reproduce("warm_start", preset)
outcome.figure

# %% [markdown]
# The lower half has accuracy against all exchanges of a training; a star above the line does better than a constant
# period with as many. Early in training warm start does nearly as k = 1. At the end `local` keeps that, and `accumulate` comes
# out where a constant period with as many exchanges would: what it gained is the early part.
#
# ## How k grows

# %%
warm = ck.fetch.warm_start(1, 32, epochs=6)
print([int(warm(ck.fetch.RoundView(workers=1, epochs=epoch))[0]) for epoch in range(9)])

# %% [markdown]
# ## Early in training

# %%
from cnnkit.experiments import accuracy

for r in outcome.rows:
    if r["figure"] == "early_accuracy":
        last = accuracy.value(outcome.rows, r["case"], "accuracy")
        print(
            f"{r['case']:<28} epoch {r['epoch']}: {r['value']:6.2f} ± {r['spread']:<5} %   "
            f"last: {last['value']:6.2f} ± {last['spread']:<5} % (n = {last['n']})"
        )

# %% [markdown]
# ## Against time

# %%
accuracy.curves(outcome.rows, "seconds")

# %% [markdown]
# ## The table

# %%
print(outcome)
