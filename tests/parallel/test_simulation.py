"""The simulation of workers against numbers worked out by hand: constant gradients, so a pencil is enough."""

from fractions import Fraction as F

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cnnkit.data import shares
from cnnkit.parallel.payload import BLOCK, PAYLOADS
from tests.simulation import Simulation, largest_remainder, rounded


def train(slopes, workers, epochs=1, size=2, last=None, statistics=False, **rules):
    """Rounds over mini-batches of ``size`` equal examples, whose gradients are ``slopes``.

    The last mini-batch has only ``last`` real examples. Statistics, if any, take half of each batch's slope.
    """
    slopes = np.asarray(slopes, float)
    weight = np.ones((len(slopes), size))
    if last:
        weight[-1, last:] = 0
    index = np.repeat(np.arange(len(slopes))[:, None], size, 1)

    def gradient(w, state, index, weight):
        return np.full_like(w, (slopes[index] * weight).sum()), state * 0.5 + slopes[index[0]] * 0.5

    simulation = Simulation(gradient, lambda epoch: (index, weight), workers, **({"lr": 1.0} | rules))
    return simulation.run(np.zeros(1), np.zeros(int(statistics)), epochs)


def weights(rounds):
    return [r.common.w[0] for r in rounds]


def test_local_mean_is_weighted_by_examples():
    # Worker 0: −1 by 2 examples; worker 1: −2 −4 by 4.
    (only,) = train([1, 2, 4], 2, fetch=lambda r: [1, 2])
    assert only.common.w[0] == pytest.approx(float(F(2 * -1 + 4 * -6, 6)))
    assert (only.shares, only.firsts, only.examples.tolist()) == ([1, 2], [0, 1], [2, 4])
    # The last mini-batch has one real example: a step of −4 still, but it counts once.
    (only,) = train([1, 2, 4], 2, fetch=lambda r: [1, 2], last=1)
    assert only.common.w[0] == pytest.approx(float(F(2 * -1 + 3 * -6, 5)))


def test_accumulate_divides_by_examples():
    (only,) = train([1, 2, 4], 2, fetch=lambda r: [1, 2], mode="accumulate")
    assert only.common.w[0] == pytest.approx(-14 / 6)
    (only,) = train([1, 2, 4], 2, fetch=lambda r: [1, 2], mode="accumulate", last=1)
    assert only.common.w[0] == pytest.approx(-10 / 5)


@pytest.mark.parametrize(
    ("inner", "second"), [("average", F(-44, 9)), ("keep", F(-59, 12)), ("reset", F(-4))], ids=str
)
def test_what_becomes_of_inner_momentum(inner, second):
    # Slope 1, momentum ½. Round 1: worker 0 goes −1 (m = 1), worker 1 goes −1 −3/2 (m = 3/2).
    # average: m = 4/3 for both, then −5/3 and −5/3 −11/6; keep: −3/2 and −7/4 −15/8; reset: as round 1.
    rounds = train([1] * 6, 2, fetch=lambda r: [1, 2], momentum=0.5, inner=inner)
    assert weights(rounds) == pytest.approx([-2, float(second)])


def test_delayed_local_rounds():
    # Worker 0 always goes −1, worker 1 always −3; each has its own last step before the others' average.
    rounds = train([1, 3] * 3, 2, fetch=lambda r: [1, 1], delay=1)
    assert weights(rounds) == [0, -2, -4]
    assert [[p.w[0] for p in r.workers] for r in rounds] == [[-1, -3], [-3, -5], [-5, -7]]
    assert [r.settled.w[0] for r in rounds] == [-2, -4, -6]


def test_delayed_accumulate_applies_the_gradient_a_round_late():
    # Means 2, 4, 6 with momentum ½: m = 0; 2; 1 + 4.
    rounds = train([1, 3, 3, 5, 5, 7], 2, fetch=lambda r: [1, 1], mode="accumulate", delay=1, momentum=0.5)
    assert weights(rounds) == [0, -2, -7]
    assert rounds[-1].settled.w[0] == -7 - (2.5 + 6)
    assert [p.w[0] for p in rounds[1].workers] == [-2, -2]


def test_nesterov_outer_step():
    # Change −1 each round; v = −1, −3/2; w moves by ½ (−1 + ½ v).
    rounds = train([1, 1], 1, outer="nesterov", outer_lr=0.5, outer_momentum=0.5)
    assert weights(rounds) == [-0.75, -1.625]


def test_statistics_are_weighted_by_examples():
    # Worker 0: ½; worker 1: 1, then ½ + 2; changes by 2 and 4 examples.
    (only,) = train([1, 2, 4], 2, fetch=lambda r: [1, 2], statistics=True)
    assert only.common.state[0] == pytest.approx((2 * 0.5 + 4 * 2.5) / 6)
    (only,) = train([1, 2, 4], 2, fetch=lambda r: [1, 2], statistics=True, mode="accumulate")
    assert only.common.state[0] == pytest.approx((2 * 0.5 + 4 * 2.5) / 6)


def test_a_schedule_is_asked_for_each_mini_batch():
    lr = lambda epoch, j: 10.0**-epoch * (j + 1)
    rounds = train([1, 1, 1], 2, epochs=2, fetch=lambda r: [1, 2], lr=lr)
    first = -(2 * 1 + 4 * (2 + 3)) / 6
    assert weights(rounds) == pytest.approx([first, first * 1.1])
    assert [r.epoch for r in rounds] == [0, 1]


@pytest.mark.parametrize("delay", [0, 1])
def test_one_worker_is_plain_sgd(delay):
    slopes = [3, 1, 4, 1, 5]
    w = m = 0.0
    for slope in slopes:
        m = 0.5 * m + slope
        w -= 0.1 * m
    rounds = train(slopes, 1, fetch=lambda r: [2], lr=0.1, momentum=0.5, delay=delay)
    assert rounds[-1].settled.w[0] == pytest.approx(w)
    assert rounds[-1].workers[0].w[0] == pytest.approx(w)


def test_fetch_one_is_synchronous_sgd_in_both_modes():
    slopes = [3, 1, 4, 1, 5, 9, 2, 6]
    local = train(slopes, 4, fetch=lambda r: [1] * 4, lr=0.1, momentum=0.5, inner="average")
    summed = train(slopes, 4, fetch=lambda r: [1] * 4, lr=0.1, momentum=0.5, mode="accumulate")
    large = [-0.1 * 2.25, -0.1 * 2.25 - 0.1 * (0.5 * 2.25 + 5.5)]
    assert weights(local) == pytest.approx(large)
    assert weights(summed) == pytest.approx(large)


def test_short_last_round_is_shared_in_proportion():
    rounds = train([1] * 5, 2, fetch=lambda r: [2, 1])
    assert [(r.shares, r.firsts) for r in rounds] == [([2, 1], [0, 2]), ([1, 1], [3, 4])]
    rounds = train([1] * 4, 3, fetch=lambda r: [1, 1, 1])
    assert rounds[-1].shares == [1, 0, 0]
    assert rounds[-1].common.w[0] == -2


@settings(deadline=None)
@example([1, 1, 4, 18, 19, 20], 9)  # equal remainders
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 100))
def test_shares_are_those_of_the_data_room(fetch, left):
    assert largest_remainder(fetch, left) == shares(fetch, left).tolist()


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=600), st.sampled_from(["bfloat16", "int8"])
)
def test_rounding_is_that_of_the_payloads(values, payload):
    x = np.array(values, np.float32)
    padded = np.pad(x, (0, -len(x) % BLOCK))
    form = PAYLOADS[payload]
    wanted = np.asarray(form.decode(form.encode(jnp.asarray(padded))))[: len(x)]
    # As far from x as each other: a value half-way between two steps may go to either.
    off, off_too = np.abs(rounded(x, payload) - x), np.abs(wanted - x)
    np.testing.assert_allclose(off, off_too, rtol=0, atol=1e-5 / 127 * np.abs(x).max() + 1e-30)


def test_rounded_contributions_are_made_up_for_later():
    # A block's largest value sets its step: 127 · 2 examples → step 2; 0.6 · 2 = 1.2 → 2, then 0.4 → 0, 1.6 → 2, 0.8 → 0, 2 → 2.
    slopes = np.array([127.0, 0.6])

    def gradient(w, state, index, weight):
        return slopes * weight.sum(), state

    batches = lambda epoch: (np.zeros((10, 2), int), np.ones((10, 2)))
    rounds = Simulation(gradient, batches, 1, mode="accumulate", lr=1.0, payload="int8").run(np.zeros(2))
    moved = np.diff([r.common.w[1] for r in rounds], prepend=0)
    assert moved.tolist() == [-1, 0, -1, 0, -1, -1, 0, -1, 0, -1]
    assert rounds[-1].common.w[1] == -6
    assert rounds[-1].common.w[0] == -1270
