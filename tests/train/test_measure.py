"""How measured times of phases become a step's time that all workers agree on."""

import numpy as np
import pytest

from cnnkit.parallel.fetch import RoundView, hide
from cnnkit.train.control import Scales
from cnnkit.train.measure import Measured


def told(measured):
    said = measured.tell(False, False, Scales())
    measured.hear(said)
    return measured.step_seconds


def test_what_a_phase_costs_beside_its_steps_does_not_weigh_on_long_ones():
    measured = Measured(1, [0])
    overhead, step = 2e-3, 1e-3
    for steps in (1, 1, 100, 120):
        measured.add({0: overhead + steps * step}, [steps], None)
    assert told(measured)[0] == pytest.approx(step * (1 + (2 / 100 + 2 / 120) / 2), rel=1e-4)


def test_one_bad_measurement_changes_nothing():
    measured = Measured(2, [0, 1])
    for took in (0.010, 0.010, 5.0, 0.010):
        measured.add({0: took, 1: 0.02}, [10, 10], None)
    assert told(measured) == pytest.approx([1e-3, 2e-3], rel=1e-4)


def test_an_exchange_takes_what_the_last_to_come_sees():
    measured = Measured(3, [0])
    said = np.zeros((3, 6), np.float32)
    said[:, 0], said[:, 1] = 1e-3, [0.5, 0.2, 0.9]
    measured.hear(said)
    assert measured.exchange_seconds == pytest.approx(0.2)


def test_a_worker_without_a_share_is_not_measured():
    measured = Measured(2, [0, 1])
    measured.add({0: 0.01, 1: 0.5}, [10, 0], None)
    steps = told(measured)
    assert steps[0] == pytest.approx(1e-3)
    assert np.isnan(steps[1])
    assert measured.speeds is None


def known(step, exchange, delay):
    """What is measured once a dispatch of three rounds has been heard of; its longest phases are of 100 steps."""
    measured = Measured(2, [0, 1])
    measured.add({0: 10 * step, 1: 20 * step}, [10, 10], exchange)
    told(measured)
    return measured, lambda took: (
        measured.dispatch(np.array([[90, 50], [100, 40], [80, 45]]), 3 * took, delay),
        told(measured),
    )


def test_an_exchange_is_what_a_round_takes_beyond_its_longest_phase():
    measured, dispatch = known(step=1e-3, exchange=0.001, delay=0)
    for _ in range(5):
        dispatch(0.1 + 0.02)
        measured.add({}, [0, 0], 0.001)  # by itself it stays short, which says nothing of a round any more
        told(measured)
    assert measured.exchange_seconds == pytest.approx(0.12 - (0.1 + 0.1 + 0.09) / 3, rel=1e-4)


def test_a_hidden_exchange_is_as_long_as_a_round_that_waits_for_it_and_no_longer_than_a_phase_that_does_not():
    phase = (0.1 + 0.1 + 0.09) / 3
    measured, dispatch = known(step=1e-3, exchange=0.03, delay=1)
    dispatch(1.01 * phase)
    assert measured.exchange_seconds == pytest.approx(0.995 * 0.03)
    for _ in range(5):
        dispatch(0.13)
    assert measured.exchange_seconds == pytest.approx(0.13)
    for _ in range(5):
        dispatch(1.01 * phase)
    assert measured.exchange_seconds == pytest.approx(phase, rel=1e-4)


def periods(policy, delay, dispatches, exchange=0.02, step=0.01):
    """What a policy asks for while rounds take stretch times what steps take on their own, dispatch after dispatch.

    Args:
        dispatches: (stretch, factor on the exchange) of each.
    """
    measured, asked = Measured(2, [0, 1]), []
    for stretch, factor in dispatches:
        told(measured)
        view = RoundView(
            workers=2, speeds=measured.speeds, exchange_seconds=measured.exchange_seconds, delay=delay
        )
        k = int(policy(view).max())
        if not asked:  # the first round is timed by itself
            measured.add({0: k * step, 1: k * step}, [k, k], exchange)
        phase = k * step * stretch
        took = max(phase, factor * exchange) if delay else phase + factor * exchange
        measured.dispatch(np.full((4, 2), k), 4 * took, delay, {} if not asked else None)
        asked.append(k)
    return asked


@pytest.mark.parametrize("stretch", [1.0, 1.02, 1.05, 1.3, 1.6])
def test_a_period_that_hides_the_exchange_stays_where_steps_take_longer_side_by_side(stretch):
    asked = periods(hide(), 1, [(stretch, 1)] * 300)
    assert max(asked) <= 4
    assert set(asked[20:]) <= {1, 2, 3}
    # A period of 2 hides it in full, and one of 1 does not.
    assert sum(asked[20:]) / 280 == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize(("stretch", "most"), [(1.0, 38), (1.02, 38), (1.15, 150), (1.5, 800)])
def test_a_period_of_a_share_for_exchanges_comes_back_from_what_was_none(stretch, most):
    asked = periods(hide(0.95), 0, [(stretch, 1)] * 300)
    assert max(asked) <= most
    lost = 0.02 / (0.02 + stretch * 0.01 * np.array(asked[20:]))
    assert lost.max() < 0.07
    assert lost.min() > 0.03


@pytest.mark.parametrize(("policy", "delay", "usual"), [(hide(), 1, 2), (hide(0.95), 0, 38)])
def test_a_period_grows_with_a_slower_link_and_comes_back_with_it(policy, delay, usual):
    asked = periods(policy, delay, [(1, 1)] * 30 + [(1, 4)] * 30 + [(1, 1)] * 600)
    assert asked[29] == usual
    assert asked[59] == pytest.approx(4 * usual, rel=0.13)
    assert asked[-1] == pytest.approx(usual, rel=0.13, abs=1)


@pytest.mark.parametrize(("policy", "delay", "usual"), [(hide(), 1, 2), (hide(0.95), 0, 38)])
def test_a_busy_machine_leaves_no_long_period_behind(policy, delay, usual):
    asked = periods(policy, delay, [(1, 1)] * 30 + [(1.4, 1)] * 40 + [(1, 1)] * 300)
    assert max(asked) <= 16 * usual
    assert asked[-1] == pytest.approx(usual, rel=0.35)


@pytest.mark.timed
def test_short_rounds_are_seldom_timed_by_themselves():
    measured, dispatch = known(step=1.1e-5, exchange=1e-5, delay=0)
    assert [round for round in range(300) if measured.due(round)][9:] == [
        31,
        63,
        95,
        127,
        159,
        191,
        223,
        255,
        287,
    ]
    for _ in range(5):
        dispatch(1.1e-3)  # 4096 such rounds are the first power of two that takes four seconds
    assert [round for round in range(25, 5000) if measured.due(round)] == [4095]
    assert measured.due(3)
    assert not Measured(1, [0]).due(31)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_step_that_was_timed_too_long_is_forgotten_when_periods_grow(delay):
    step, exchange, more = 1e-3, 2e-4, 2e-3  # of what timing a phase costs
    measured = Measured(2, [0, 1])
    round_ = lambda k: max(k * step, exchange) if delay else k * step + exchange

    def dispatch(k, timed):
        if timed:
            measured.add({0: k * step + more, 1: k * step + more}, [k, k], exchange)
        measured.dispatch(np.full((4, 2), k), 4 * round_(k), delay, {} if timed else None)
        told(measured)

    for i in range(60):
        dispatch(1, timed=i % 8 == 0)
    took = measured.step_seconds[0] + (0 if delay else measured.exchange_seconds)
    assert took == pytest.approx(round_(1), rel=0.05)
    for i in range(60):
        dispatch(32, timed=i % 8 == 0)
    assert measured.step_seconds == pytest.approx([step, step], rel=0.08)
    assert measured.exchange_seconds < 2e-3
