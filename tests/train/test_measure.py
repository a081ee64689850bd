"""How measured times of phases become a step's time that all workers agree on."""

import numpy as np
import pytest

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
    assert measured.exchange_seconds == pytest.approx(0.03)
    for _ in range(5):
        dispatch(0.13)
    assert measured.exchange_seconds == pytest.approx(0.13)
    for _ in range(5):
        dispatch(1.01 * phase)
    assert measured.exchange_seconds == pytest.approx(phase, rel=1e-4)


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
