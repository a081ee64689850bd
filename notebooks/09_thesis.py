# %% [markdown]
# # The thesis, and here
#
# Every figure that the thesis reports and an experiment repeats, beside ours; then each experiment's table and figure.
# Nothing is run: all of it is read from `benchmarks/results`, where each file names its machine, its versions and its
# command. What a checkout lacks is said to be missing. Seconds.
#
# | where | command |
# | --- | --- |
# | measure all again, a CPU, half an hour | `cnnkit reproduce all --preset small` |
# | one GPU, or several | `cnnkit reproduce all --preset full` |
# | several machines | `srun cnnkit reproduce cluster --preset full` on each |
# | one experiment | `cnnkit reproduce NAME --preset small` |

# %%
from cnnkit import experiments
from cnnkit.experiments import saved

lines = saved.lines()
saved.figure(lines)

# %%
print(saved.table(lines))

# %% [markdown]
# **What to know when comparing.** The thesis's test accuracies are of the best epoch, chosen on the test set; ours are of
# the last one. Its GPUs, their links and the speeds of its unequal workers are not told. Its two figures for clusters,
# synchronous training at 47 % of one node and 12.34 times that, together are 5.8 nodes' worth of four; with one worker a
# node four is the most there can be, so its nodes held several GPUs or its two baselines differ. The small presets run
# on a CPU with small networks, and where there are fewer cores than workers, steps mostly wait.
#
# ## Every experiment

# %%
found = {name: saved.read(name) for name in experiments.EXPERIMENTS}
for name, outcome in found.items():
    print(
        f"{name}: {saved.MISSING}; cnnkit reproduce {name} --preset small" if outcome is None else outcome,
        end="\n\n",
    )

# %% [markdown]
# ## Their figures

# %%
from IPython.display import Image, display

for outcome in found.values():
    if outcome is not None:
        print(f"{outcome.experiment.title} ({outcome.experiment.source})")
        display(Image(outcome.figure.png(dpi=80, colors=96)))
