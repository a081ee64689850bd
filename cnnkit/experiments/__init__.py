"""The thesis's and the paper's experiments, one module each: a configuration, a run, a figure, a table."""

from cnnkit.experiments.base import EXPERIMENTS, Experiment, Outcome, reproduce

__all__ = ["EXPERIMENTS", "Experiment", "Outcome", "reproduce"]
