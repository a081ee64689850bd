"""Which example is in which mini-batch of which worker: pure functions of (seed, epoch) and of the shares."""

from collections.abc import Sequence

import numpy as np


def batches(n: int, batch: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """The mini-batches of an epoch: every example exactly once, the last mini-batch padded.

    A function of its arguments alone, the same on every platform: whoever resumes a run, or changes the
    number of workers, meets the same mini-batches in the same order.

    The padding repeats the epoch's first examples at weight 0: they count nowhere, and batch-norm's
    statistics of the last mini-batch are not bent by many copies of one image.

    Args:
        n: number of examples.
        batch: examples in a mini-batch.
        seed: of the run.
        epoch: from 0.

    Returns:
        index: int32 [ceil(n / batch), batch], which example stands where.
        weight: float32 of the same shape, 1 for an example and 0 for padding.

    Raises:
        ValueError: n or batch below 1, a negative epoch.

    >>> index, weight = batches(5, 2, seed=0, epoch=0)
    >>> sorted(index[weight == 1].tolist()), weight[-1].tolist()
    ([0, 1, 2, 3, 4], [1.0, 0.0])
    """
    for name, value, least in (("n", n, 1), ("batch", batch, 1), ("epoch", epoch, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    rows = -(-n // batch)
    weight = np.zeros(rows * batch, np.float32)
    index = np.resize(_permutation(n, seed, epoch), rows * batch)
    weight[:n] = 1
    return index.reshape(rows, batch), weight.reshape(rows, batch)


def shares(fetch: Sequence[int] | np.ndarray, left: int) -> np.ndarray:
    """How many of the mini-batches left in the epoch each worker takes in the next round.

    fetch itself while it fits; in the epoch's last round, if shorter, the rest in the same proportion,
    rounded by largest remainder. No worker is ever given more than its fetch.

    Args:
        fetch: local steps of each worker, each at least 1.
        left: mini-batches of the epoch that nobody has taken yet.

    Returns:
        int32 [workers]; the sum is min(sum(fetch), left).

    Raises:
        ValueError: a fetch below 1, no worker, a negative left.

    >>> shares([4, 2], left=10).tolist(), shares([4, 2], left=3).tolist()
    ([4, 2], [2, 1])
    """
    steps = np.asarray(fetch, np.int64)
    if steps.ndim != 1 or not len(steps) or steps.min() < 1:
        raise ValueError(f"fetch must hold a whole number of at least 1 for each worker, got {list(fetch)}")
    if left < 0:
        raise ValueError(f"left must be at least 0 mini-batches, got {left}")
    total = int(steps.sum())
    if total <= left:
        return steps.astype(np.int32)
    share, rest = np.divmod(steps * left, total)
    share[np.argsort(-rest, kind="stable")[: left - share.sum()]] += 1
    return share.astype(np.int32)


def starts(shares: Sequence[int] | np.ndarray, first: int = 0) -> np.ndarray:
    """Where each worker's run of mini-batches begins: first plus the shares before it, int32 [workers].

    >>> starts([4, 2, 1], first=10).tolist()
    [10, 14, 16]
    """
    counts = np.asarray(shares, np.int32)
    return (first + np.cumsum(counts) - counts).astype(np.int32)


def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    # Raw Philox words are the same for every NumPy and platform, which Generator.permutation does not
    # promise. Each word keeps its high bits as the random key and carries its example in the low bits:
    # one plain sort, several times faster than an argsort, and free of ties.
    words = np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64)).random_raw(n)
    low = np.uint64((1 << max(n - 1, 1).bit_length()) - 1)
    words &= ~low
    words |= np.arange(n, dtype=np.uint64)
    words.sort()
    return (words & low).astype(np.int32)
