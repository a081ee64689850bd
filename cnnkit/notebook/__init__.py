"""Watching, steering and looking: the panel, the GPU monitor, plots, views of networks and runs."""
