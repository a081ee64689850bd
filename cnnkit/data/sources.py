"""The data sets known by name: where they are looked for, fetched, verified and parsed."""

import os
from pathlib import Path

import numpy as np

from cnnkit.data.dataset import Dataset, Split
from cnnkit.names import choose

DIGITS = Path(__file__).with_name("digits.npz")


def load(name: str = "digits", folder: str | os.PathLike | None = None) -> Dataset:
    """The data set of that name."""
    return choose(name, {"digits": _digits}, "data set")()


def _digits() -> Dataset:
    with np.load(DIGITS, allow_pickle=False) as stored:
        train = Split(stored["train_images"], stored["train_labels"])
        test = Split(stored["test_images"], stored["test_labels"])
    return Dataset(
        "digits", train, test, tuple("0123456789"), source="bundled with cnnkit (UCI optical digits)"
    )
