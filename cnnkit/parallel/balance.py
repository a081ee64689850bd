"""Whole numbers of steps in proportion to speed: what the ``balanced`` policy computes."""

import numpy as np

_TRIES = 512


def share(steps: int, speeds: np.ndarray, busy: float = 0.97) -> np.ndarray:
    """Steps of each worker, so that all finish at nearly the same time.

    In a window of T seconds worker i finishes ⌊T v_i⌋ steps, and no other whole numbers keep it
    busier within T. The round then lasts T' = max_i k_i / v_i, and worker i computes for
    k_i / v_i of it, the fraction

        busy_i = k_i / (v_i T').

    Throughput against that of workers that never wait is Σ k_i / (T' Σ v_i), the mean of busy_i
    weighted by v_i: never below the least busy_i. So the least busy_i is what is looked at. Windows
    in which the steps come to at least ``steps`` are tried from the shortest up to twice that long;
    the first that keeps everyone at least ``busy`` is taken, or, where none does, the first within 0.01
    of the best. Fewer steps than asked for are never returned: an exchange that the asked steps hide
    stays hidden.

    Args:
        steps: Σ k_i that the round should have, at least.
        speeds: v_i, float64 [W], mini-batches a second, all positive.
        busy: the least fraction of the round that every worker should compute, 0 to 1.

    Returns:
        int64 [W], each at least 1.

    >>> share(32, np.array([1.0, 0.5]))
    array([22, 11])
    """
    total = speeds.sum()
    shortest = max(1 / speeds.min(), steps / total)
    # In a window of (steps + W) / Σ v the rounding down cannot take the sum below steps.
    longest = max(2 * shortest, (steps + len(speeds)) / total)
    windows = np.unique(np.concatenate([_windows(v, shortest, longest) for v in speeds]))
    # The guard keeps j / v · v from falling just short of j.
    fits = np.floor(windows[:, None] * speeds * (1 + 1e-9)).astype(np.int64)
    fits = fits[(fits.sum(1) >= steps) & (fits.min(1) >= 1)]
    seconds = fits / speeds
    least = seconds.min(1) / seconds.max(1)
    return fits[np.flatnonzero(least >= min(busy, least.max() - 0.01))[0]]


def _windows(speed: float, shortest: float, longest: float) -> np.ndarray:
    """Windows in which one worker just finishes a step; between these, no number of steps changes."""
    first = max(int(np.ceil(shortest * speed * (1 - 1e-9))), 1)
    last = max(int(np.floor(longest * speed * (1 + 1e-9))), first)
    # Where there are more, the first few already waste less than a step in hundreds.
    return np.arange(first, min(last, first + _TRIES) + 1) / speed
