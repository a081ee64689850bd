"""cnnkit beside its peers, each pair measured in one run; the figures go to results/."""
