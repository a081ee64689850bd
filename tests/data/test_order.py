"""The order of examples: every one exactly once an epoch, whoever takes which mini-batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnkit.data.order import batches, shares, starts

MASK = 2**64 - 1


def philox(key, words):
    """Philox4x64-10 as Salmon et al. 2011 give it, in Python's whole numbers; counters from 1."""
    out = []
    for block in range(1, -(-words // 4) + 1):
        x, k = [block, 0, 0, 0], list(key)
        for _ in range(10):
            left, right = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
            x = [right >> 64 ^ x[1] ^ k[0], right & MASK, left >> 64 ^ x[3] ^ k[1], left & MASK]
            k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
        out += x
    return out[:words]


@pytest.mark.parametrize(("n", "seed", "epoch"), [(1, 0, 0), (10, 0, 0), (37, 5, 3), (64, -1, 1000)])
def test_the_order_is_that_of_philox_words(n, seed, epoch):
    words = philox((seed & MASK, epoch), n)
    bits = max(n - 1, 1).bit_length()
    expected = sorted(range(n), key=lambda i: (words[i] >> bits, i))
    index, _ = batches(n, n, seed, epoch)
    assert index[0].tolist() == expected


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_example_counts_exactly_once_an_epoch(data):
    n, batch = data.draw(st.integers(1, 400), "n"), data.draw(st.integers(1, 50), "batch")
    workers = data.draw(st.integers(1, 8), "workers")
    seed, epoch = data.draw(st.integers(0, 2**40), "seed"), data.draw(st.integers(0, 1000), "epoch")
    index, weight = batches(n, batch, seed, epoch)
    counted, first = np.zeros(n), 0
    while first < len(index):
        fetch = data.draw(st.lists(st.integers(1, 9), min_size=workers, max_size=workers), "fetch")
        taken = shares(fetch, len(index) - first)
        assert taken.sum() == min(sum(fetch), len(index) - first)
        assert (taken >= 0).all()
        assert (taken <= fetch).all()
        for start, steps in zip(starts(taken, first), taken, strict=True):
            rows = slice(start, start + steps)
            np.add.at(counted, index[rows].ravel(), weight[rows].ravel())
        first += int(taken.sum())
    assert first == len(index)
    np.testing.assert_array_equal(counted, np.ones(n))


def test_shapes_types_and_padding():
    index, weight = batches(10, 4, seed=3, epoch=1)
    assert index.shape == weight.shape == (3, 4)
    assert index.dtype == np.int32
    assert weight.dtype == np.float32
    assert weight.tolist() == [[1] * 4, [1] * 4, [1, 1, 0, 0]]
    assert index[2, 2:].tolist() == index[0, :2].tolist()
    assert sorted(index[weight == 1].tolist()) == list(range(10))
    assert batches(2, 5, 0, 0)[1].tolist() == [[1, 1, 0, 0, 0]]


def test_seed_and_epoch_each_give_another_order():
    orders = {
        (seed, epoch): batches(100, 100, seed, epoch)[0].tobytes() for seed in range(5) for epoch in range(5)
    }
    assert len(set(orders.values())) == 25


def test_every_example_stands_everywhere_equally_often():
    n, epochs = 20, 2000
    place = np.zeros((n, n))
    for epoch in range(epochs):
        place[batches(n, n, 0, epoch)[0][0], np.arange(n)] += 1
    expected = epochs / n
    chi = ((place - expected) ** 2 / expected).sum()
    # (n−1)² = 361 degrees of freedom: mean 361, deviation 27.
    assert 361 - 5 * 27 < chi < 361 + 5 * 27


def test_a_short_last_round_keeps_the_proportion():
    assert shares([8, 4, 4], 8).tolist() == [4, 2, 2]
    assert shares([8, 4, 4], 16).tolist() == [8, 4, 4]
    assert shares([8, 4, 4], 1000).tolist() == [8, 4, 4]
    assert shares([3, 3, 3], 1).tolist() == [1, 0, 0]
    assert shares([3, 1], 2).tolist() == [2, 0]
    assert shares([5], 0).tolist() == [0]
    assert shares([5, 2], 4).dtype == np.int32


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(0, 8000))
def test_shares_stay_within_one_of_the_exact_proportion(fetch, left):
    exact = np.array(fetch) * min(1, left / sum(fetch))
    taken = shares(fetch, left)
    assert (np.abs(taken - exact) < 1).all()
    assert taken.sum() == min(sum(fetch), left)


def test_starts_are_the_sums_before():
    assert starts([4, 2, 0, 1], 10).tolist() == [10, 14, 16, 16]
    assert starts([3]).tolist() == [0]
    assert starts([4, 2], 1).dtype == np.int32


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: batches(0, 4, 0, 0), "n must be at least 1, got 0"),
        (lambda: batches(4, 0, 0, 0), "batch must be at least 1, got 0"),
        (lambda: batches(4, 1, 0, -1), "epoch must be at least 0, got -1"),
        (lambda: shares([2, 0], 4), r"at least 1 for each worker, got \[2, 0\]"),
        (lambda: shares([], 4), "fetch must hold a whole number"),
        (lambda: shares([1], -1), "left must be at least 0 mini-batches, got -1"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
