"""Learning-rate schedules against numbers worked out by hand."""

import numpy as np
import pytest

from cnnkit.train import optim
from cnnkit.train.schedule import as_schedule, constant, cosine, one_cycle, stages


def rates(schedule, *epochs, of=10):
    return schedule(np.array(epochs), of)[0].tolist()


def test_constant_and_a_plain_number_are_the_same():
    assert rates(as_schedule(0.25), 0, 3.7, 10) == [0.25] * 3
    assert as_schedule(0.25).config == constant(0.25).config == {"lr": 0.25}
    lr, momentum = constant(0.25)(1.0, 10)
    assert (lr.dtype, momentum.dtype, bool(np.isnan(momentum))) == (np.float32, np.float32, True)


def test_stages_change_at_the_epoch_and_the_last_goes_on():
    schedule = stages((0.5, 10), (0.25, 5), (0.125, 1))
    assert rates(schedule, 0, 9.999, 10, 14.9, 15, 15.5, 99) == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.125]
    # A third of an epoch, added up three times, is an epoch although it falls just short of it.
    assert rates(stages((0.5, 1), (0.25, 1)), 1 / 3 + 1 / 3 + (1 - 2 / 3 - 1e-12)) == [0.25]


def test_stages_carry_momentum():
    schedule = stages((0.5, 0.75, 2), (0.25, 0.5, 2), (0.25, 1))
    momentum = schedule(np.array([1.0, 3.0, 4.0]), 10)[1]
    assert momentum[:2].tolist() == [0.75, 0.5]
    assert np.isnan(momentum[2])
    _, momentum = optim.sgd(schedule, momentum=0.875).rates(np.array([1.0, 3.0, 4.0]), 10)
    assert momentum.tolist() == [0.75, 0.5, 0.875]


def test_cosine_falls_by_half_in_the_middle_and_warms_up():
    assert rates(cosine(0.5), 0, 5, 10) == pytest.approx([0.5, 0.25, 0.0])
    assert rates(cosine(0.5, final=0.1), 10, 12) == pytest.approx([0.1, 0.1])
    # 0.5 (1 + cos 60°) = 0.75, a third of the way
    assert rates(cosine(1.0), 10 / 3) == pytest.approx([0.75])
    warm = cosine(0.5, warmup=2)
    assert rates(warm, 1, 2, 6, 10) == pytest.approx([0.25, 0.5, 0.25, 0.0], abs=3e-4)
    assert rates(warm, 0)[0] > 0


def test_one_cycle_rises_and_falls_linearly():
    schedule = one_cycle(1.0, rise=0.25, start=0.2, final=0.1)
    assert rates(schedule, 0, 1.25, 2.5, 6.25, 10, 11) == pytest.approx([0.2, 0.6, 1.0, 0.55, 0.1, 0.1])
    assert rates(one_cycle(1.0, rise=0), 0, 5, 10) == pytest.approx([1, 0.5, 0])
    assert rates(one_cycle(1.0, rise=1), 0, 5, 10) == pytest.approx([0.1, 0.55, 1.0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: constant(-0.1), "constant: lr is -0.1; it must be a number above 0"),
        (lambda: optim.sgd(0.0), "constant: lr is 0.0; it must be a number above 0"),
        (lambda: optim.sgd(float("nan")), "constant: lr is nan; it must be a number above 0"),
        (lambda: stages(), r"stages takes \(lr, epochs\) or \(lr, momentum, epochs\) tuples, not \(\)"),
        (lambda: stages((0.1,)), r"stages takes .* not \(\(0.1,\),\)"),
        (lambda: stages((-0.1, 5)), "stages: lr is -0.1; it must be a number above 0"),
        (lambda: stages((0.1, 0)), "stages: epochs is 0; it must be a number above 0"),
        (lambda: stages((0.1, 1.5, 3)), "stages: momentum is 1.5; it must be at least 0 and below 1"),
        (lambda: cosine(0.1, warmup=-1), "cosine: warmup is -1; it must be 0 or more"),
        (lambda: one_cycle(0.1, rise=2), "one_cycle: rise is a part of the training, 0 to 1, not 2"),
        (lambda: constant("fast"), "constant: lr is 'fast'; it must be a number above 0"),
    ],
)
def test_rates_that_cannot_be_say_so(build, message):
    with pytest.raises(ValueError, match=message):
        build()
