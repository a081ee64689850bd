"""Which rounds come next: shares of an epoch's mini-batches, and what a policy is told of each round."""

import numpy as np
import pytest

from cnnkit.parallel.fetch import as_policy
from cnnkit.train.agenda import Agenda
from cnnkit.train.measure import Measured
from cnnkit.train.step import Plan


def agenda(fetch, batches=10, epoch=2, last=3):
    """An epoch of mini-batches of five examples, the last one short, on two workers."""
    weight = np.ones((batches, 5), np.float32)
    weight[-1, last:] = 0
    lr = np.linspace(1, 0.1, batches, dtype=np.float32)
    plan = Plan(np.zeros((batches, 5), np.int32), weight, lr, lr, None, np.int32(epoch))
    return Agenda(plan, fetch, Measured(2, [0, 1]), 2, 0)


def test_shares_lie_side_by_side_and_the_last_round_takes_what_is_left():
    firsts, counts = agenda(as_policy(2)).rounds(6, 0, 1e9, 1, 1.0)
    assert (firsts.tolist(), counts.tolist()) == ([[0, 2]], [[2, 2]])
    firsts, counts = agenda(as_policy(2)).rounds(6, 4, 1e9, 1, 2.0)
    assert (firsts.tolist(), counts.tolist()) == ([[4, 7]], [[3, 3]])


def test_a_policy_is_told_where_a_round_begins():
    told = []

    def fetch(view):
        told.append(view)
        return np.array([1, 1])

    agenda(fetch).rounds(6, 4, 1e9, 1, 1.0)
    (view,) = told
    assert (view.round, view.workers, view.delay) == (6, 2, 0)
    assert view.epochs == pytest.approx(2.4)
    # Two epochs of 48, and four mini-batches of five.
    assert view.examples == 2 * 48 + 20
    assert view.lr == pytest.approx(0.6)
