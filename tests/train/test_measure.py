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


def test_a_hidden_exchange_is_seen_where_it_is_waited_for_and_bounded_where_not():
    measured = Measured(2, [0, 1])
    took = {0: 0.30, 1: 0.25}
    # Both wait until the same moment; the one that began last saw the whole of it.
    assert measured.hidden(took, {0: 0.08, 1: 0.14}) == pytest.approx(0.38)
    assert measured.hidden(took, {0: 0.001, 1: 0.06}) is None
    measured.exchange_seconds = 0.4
    assert measured.hidden(took, {0: 0.001, 1: 0.06}) == 0.25
    measured.exchange_seconds = 0.2
    assert measured.hidden(took, {0: 0.001, 1: 0.06}) is None
