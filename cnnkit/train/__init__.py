"""Training: optimizers, steps, rounds, evaluation, and the run that holds them together."""
