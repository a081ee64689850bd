"""Where examples come from: data sets, their order, and streams of them."""

from cnnkit.data.dataset import Dataset, Split, from_arrays
from cnnkit.data.order import batches, shares, starts
from cnnkit.data.sources import load

__all__ = ["Dataset", "Split", "batches", "from_arrays", "load", "shares", "starts"]
