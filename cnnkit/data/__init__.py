"""Where examples come from: data sets, their order, and streams of them."""

from cnnkit.data.dataset import Dataset, Split, from_arrays
from cnnkit.data.folder import from_folder
from cnnkit.data.formats import read_cifar, read_idx
from cnnkit.data.order import batches, shares, starts
from cnnkit.data.readers import ArrayReader, FolderReader, Reader
from cnnkit.data.sources import load, status
from cnnkit.data.stream import Batch, ReadError, Stream

__all__ = [
    "ArrayReader",
    "Batch",
    "Dataset",
    "FolderReader",
    "ReadError",
    "Reader",
    "Split",
    "Stream",
    "batches",
    "from_arrays",
    "from_folder",
    "load",
    "read_cifar",
    "read_idx",
    "shares",
    "starts",
    "status",
]
