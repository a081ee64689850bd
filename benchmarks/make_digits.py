"""Writes cnnkit/data/digits.npz, the bundled set, from scikit-learn's copy of the UCI optical digits.

    python benchmarks/make_digits.py

1,797 images of 8×8 pixels, their grey values 0 to 16 scaled to 0 to 255; a fifth of them, the same share of
every class, is the test part. Needs scikit-learn. The same input gives the same file.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from cnnkit.data.dataset import stratified

OUT = Path(__file__).parents[1] / "cnnkit" / "data" / "digits.npz"


def main() -> None:
    raw = load_digits()
    images = np.round(raw.images * (255 / 16)).astype(np.uint8)
    labels = raw.target.astype(np.uint8)
    test = np.zeros(len(labels), bool)
    test[stratified(labels, 360, seed=0)] = True
    np.savez_compressed(
        OUT,
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
    )
    print(f"{OUT}: {OUT.stat().st_size:,} bytes, {(~test).sum()} train, {test.sum()} test")


if __name__ == "__main__":
    main()
