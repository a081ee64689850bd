# %% [markdown]
# # Balance: unequal workers that never wait
#
# With equal periods a round lasts as long as its slowest worker. `balanced` measures each worker's speed and shares
# the round's steps out in proportion (the thesis's fetch_i, sections 5.3.3 and 5.6.1).
#
# Expected, on a 2-core AMD EPYC with a process for each worker, whose steps mostly wait (n = 3 windows): on four
# workers of speeds 1, 0.5, 0.33 and 0.25 `balanced` reaches 2.21 ± 0.01 times the throughput of synchronous training,
# 93.6 ± 0.6 % of what the workers do alone, all of them busy nine tenths of the time; equal periods leave the fastest
# busy for a quarter of it. On speeds 1 and 0.5 it is 1.48 ± 0.01 times. Two and a half minutes.
#
# | where | command |
# | --- | --- |
# | this notebook's size, a CPU | `cnnkit reproduce load_balance --preset small` |
# | two GPUs, one made slower by doing its work over again | `cnnkit reproduce load_balance --preset full` |
# | more GPUs | `cnnkit reproduce load_balance 'speeds=[[1,0.5,0.33,0.25]]' --preset full` |
# | your own machines, as unequal as they are | `cnnkit train … --fetch 'balanced(every(16))'`, then `cnnkit plot FOLDER --rounds` |
#
# One GPU has nobody to wait for.

# %%
import os

import cnnkit as ck

preset = "smoke" if os.environ.get("CNNKIT_SMOKE") else "small"
outcome = ck.experiments.reproduce("load_balance", preset)
outcome.figure

# %% [markdown]
# Each bar is a throughput against the sum of what the workers do alone; the diamond is what the cost model makes of the
# workers' speeds alone, the policy's steps and the measured exchange: `T = max_i(k_i t_i) + x`. The strips below are the
# workers of the last, most unequal set.
#
# ## What the policy decides
#
# A pure function of the measured speeds, so every process comes to the same numbers without talking:

# %%
for speeds in [(100, 70), (100, 50), (100, 50, 33, 25)]:
    view = ck.fetch.RoundView(workers=len(speeds), speeds=tuple(map(float, speeds)))
    print(speeds, "steps a second ->", ck.fetch.balanced(ck.fetch.every(16))(view), "steps a round")

# %% [markdown]
# ## Prediction and measurement

# %%
for r in outcome.rows:
    if r["figure"] == "images_per_s":
        print(
            f"{r['case']:<38} predicted {r['predicted']:6.0f}   measured {r['value']:6.0f} ± {r['spread']:.0f} images/s"
        )

# %% [markdown]
# Exchanges are timed in rounds that look at the clock, where they take longer than among many rounds in one program;
# synchronous rounds, which have the most exchanges, can beat their prediction.
#
# ## Round by round
#
# `ck.plots.rounds` (on the command line `cnnkit plot FOLDER --rounds`) draws fetch_i and the busy share of any run
# with several workers. Here the balanced run on the most unequal workers: equal periods until speeds are measured,
# then each its own. Rounds that are timed by themselves stand beside dispatches of many.

# %%
speeds, steps = ("1-0.5", 8) if preset == "smoke" else ("1-0.5-0.33-0.25", 16)
ck.plots.rounds(outcome.folder / "load_balance" / speeds / "runs" / f"balanced-every-{steps}")

# %% [markdown]
# ## The table

# %%
print(outcome)
