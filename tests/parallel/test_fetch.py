"""Policies: how many local steps each worker takes, by numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnkit.parallel.balance import share
from cnnkit.parallel.fetch import (
    RoundView,
    as_policy,
    balanced,
    every,
    hide,
    parse,
    period,
    post_local,
    qsr,
    smooth,
    warm_start,
)
from cnnkit.parallel.policy import Policy, ask


def steps(policy, **view):
    view = {"workers": 1} | view
    return policy(RoundView(**view)).tolist()


def test_every_gives_everyone_k():
    assert steps(every(3), workers=4) == [3, 3, 3, 3]


def test_warm_start_doubles_at_equal_intervals():
    grow = warm_start(1, 16, epochs=8)
    assert [steps(grow, epochs=t)[0] for t in (0, 1, 2, 4, 5, 6, 8, 100)] == [1, 1, 2, 4, 6, 8, 16, 16]
    assert steps(warm_start(2, 8, rounds=10), round=5) == [4]
    assert steps(warm_start(16, 1, epochs=4), epochs=2) == [4]


def test_warm_start_in_stages():
    grow = warm_start(epochs=[(0, 1), (1.5, 4), (5, 16)])
    assert [steps(grow, epochs=t)[0] for t in (0, 1.49, 1.5, 4.9, 5, 80)] == [1, 1, 4, 4, 16, 16]


def test_period_is_what_fits_in_the_window():
    assert steps(period(0.5), workers=3, speeds=(10.0, 3.9, 0.7)) == [5, 1, 1]
    assert steps(period(0.3), speeds=(10.0,)) == [3]  # 0.3 · 10 is 2.9999999999999996 in float64
    assert steps(period(0.5), workers=2) == [1, 1]
    assert steps(period(0.5), workers=2, step_seconds=0.1) == [5, 5]


def test_period_grows_as_npurine_had_it():
    window = period(rounds=[(0, 2.0), (100, 2.5), (200, 3.0)])
    assert [steps(window, round=r, speeds=(10.0,))[0] for r in (0, 99, 100, 200)] == [20, 20, 25, 30]
    assert steps(period(1.0, 4.0, epochs=2), epochs=1, speeds=(10.0,)) == [20]


def test_post_local_and_qsr():
    assert [steps(post_local(8, 2.5), epochs=e)[0] for e in (0, 2.4, 2.5)] == [1, 1, 8]
    assert [steps(qsr(0.2, 4), lr=lr)[0] for lr in (0.4, 0.1, 0.05, 0.03)] == [4, 4, 16, 44]
    assert steps(qsr(0.2), lr=0.0) == [1_000_000]
    assert steps(qsr(0.2), lr=1e-200) == [1_000_000]


def test_hide_with_delay_covers_the_exchange():
    view = {"workers": 2, "speeds": (100.0, 30.0), "exchange_seconds": 0.209, "delay": 1}
    assert steps(hide(), **view) == [21, 7]
    assert steps(hide(0.5), **view) == [11, 4]
    assert steps(hide(most=5), **view) == [5, 5]
    assert steps(hide(), speeds=(100.0,), exchange_seconds=0.07, delay=1) == [
        7
    ]  # 7.000000000000001 in float64


def test_hide_without_delay_makes_the_exchange_small():
    # 10 ms of exchange may be 5 % of the round: 190 ms of computing.
    assert steps(hide(0.95), speeds=(100.0,), exchange_seconds=0.01) == [19]
    with pytest.raises(ValueError, match=r"hide\(1.0\) cannot be reached with delay=0.*such as hide\(0.95\)"):
        steps(hide())


def test_hide_waits_for_measurements():
    assert steps(hide(first=2), workers=2, delay=1) == [2, 2]
    assert steps(hide(), speeds=(100.0,), delay=1) == [1]


def test_balanced_shares_in_proportion():
    assert steps(balanced(every(16)), workers=2) == [16, 16]
    assert steps(balanced(every(16)), workers=2, speeds=(1.0, 1.0)) == [16, 16]
    assert steps(balanced(every(16)), workers=2, speeds=(1.0, 0.5)) == [22, 11]
    assert steps(balanced(every(1)), workers=2, speeds=(1.0, 0.5)) == [2, 1]
    assert steps(balanced(every(8)), workers=4, speeds=(4.0, 3.0, 2.0, 1.0)) == [16, 12, 8, 4]
    # Whole numbers that keep both 97 % busy within twice the 8 steps: 7 / 0.7 against 10 / 1 in a longer round.
    assert steps(balanced(every(4)), workers=2, speeds=(1.0, 0.7)) == [7, 5]
    assert steps(balanced(warm_start(1, 8, epochs=2)), workers=2, speeds=(1.0, 0.5), epochs=2) == [12, 6]


def test_balanced_hide_still_hides():
    view = {"workers": 2, "speeds": (10.0, 3.3), "exchange_seconds": 1.0, "delay": 1}
    k = np.array(steps(balanced(hide()), **view))
    assert (k / [10.0, 3.3]).max() >= 1.0


@settings(deadline=None)
@given(
    speeds=st.lists(st.floats(0.25, 1.0), min_size=2, max_size=4),
    k=st.integers(16, 100),
)
def test_balanced_keeps_everyone_busy_from_16_steps_on(speeds, k):
    rates = np.array([1.0, *speeds])
    taken = share(k * len(rates), rates)
    seconds = taken / rates
    assert taken.min() >= 1
    assert taken.sum() >= k * len(rates)
    assert taken.sum() <= 2 * k * len(rates) + len(rates)
    assert seconds.min() / seconds.max() >= 0.94
    # The mean of the busy fractions, by speed, is what is left of the ideal throughput.
    assert taken.sum() / (seconds.max() * rates.sum()) >= 0.96


def test_balanced_takes_its_own_measure_of_busy():
    assert share(2, np.array([1.0, 0.9]), busy=0.9).tolist() == [1, 1]
    assert share(2, np.array([1.0, 0.9]), busy=1.0).tolist() == [
        1,
        1,
    ]  # 0.9 is the best within twice the round
    assert share(10, np.array([1.0, 0.9]), busy=1.0).tolist() == [10, 9]


def test_faults_of_measuring_do_no_harm():
    view = RoundView(workers=4, speeds=(10.0, math.nan, 0.0, 10.0))
    assert view.rates().tolist() == [10.0, 10.0, 10.0, 10.0]
    assert RoundView(workers=3, speeds=(10.0, 1e-9, 10.0)).rates().tolist() == [10.0, 10.0 / 32, 10.0]
    assert RoundView(workers=2, speeds=(math.nan, 0.0)).rates() is None
    with pytest.raises(ValueError, match=r"speeds has shape \(2,\); one for each of 3 workers is needed"):
        RoundView(workers=3, speeds=(1.0, 2.0)).rates()


def test_smooth_is_the_median_of_the_last_rounds():
    assert smooth([]) is None
    assert smooth([[1.0, 2.0]]) == (1.0, 2.0)
    rows = [[100.0, 5.0], [10.0, 5.0], [11.0, 5.0], [0.1, 5.0], [12.0, math.nan], [10.0, 7.0]]
    assert smooth(rows) == (10.0, 5.0)
    assert smooth(rows, last=2) == (11.0, 7.0)
    assert math.isnan(smooth([[1.0, math.nan]])[1])


POLICIES = [
    every(4),
    warm_start(1, 16, epochs=5),
    warm_start(rounds=[(0, 1), (100, 8)]),
    period(2.0),
    period(2.0, 3.0, rounds=200),
    balanced(warm_start(1, 16, epochs=5), busy=0.9),
    hide(0.95, most=64),
    balanced(hide()),
    qsr(0.2, 4),
    post_local(8, 2.5),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.describe())
def test_text_reads_back(policy):
    assert parse(policy.describe()) == policy
    assert hash(parse(policy.describe())) == hash(policy)


def test_text_forms():
    assert parse(" balanced( warm_start(1, 16, epochs=5) ) ") == balanced(warm_start(1, 16, epochs=5))
    assert parse("warm_start(epochs=[(0, 1), (5, 16)])").describe() == "warm_start(epochs=((0, 1), (5, 16)))"
    assert parse("8") == every(8) == as_policy(8)
    assert as_policy("hide(0.9)") == hide(0.9)
    assert as_policy(every(2)) == every(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ballanced(every(1))", "unknown fetch policy 'ballanced': did you mean 'balanced'"),
        ("every", r"fetch 'every': every is written with parentheses, as every\(…\)"),
        ("evry", "unknown fetch policy 'evry': did you mean 'every'"),
        ("every(", "is no policy: write, for instance, balanced"),
        ("every(1) + 1", "is no policy: write, for instance, balanced"),
        ("every(open('x'))", "unknown fetch policy 'open'"),
        ("every(k=x)", "x is neither a policy nor a number or list"),
        ("every(*[1])", r"write out each argument, without \* or \*\*"),
        ("every(**{'k': 1})", r"write out each argument, without \* or \*\*"),
        ("every(1, 2)", "every takes k"),
        ("warm_start(1, 16, epoch=5)", "warm_start takes first, last, epochs, rounds"),
        ("every(0)", "every: k is a whole number of at least 1, got 0"),
        ("every(True)", "every: k is a whole number of at least 1, got True"),
        ("0.5", "every: k is a whole number of at least 1, got 0.5"),
        (
            "warm_start(1, 16)",
            r"over epochs or over rounds, one of the two: warm_start\(1, 16, epochs=5\) or",
        ),
        ("warm_start(1, epochs=3)", "needs where it begins and where it ends"),
        ("warm_start(1, 16, epochs=0)", "a number above 0 or a list, got 0"),
        ("warm_start(1.5, 16, epochs=5)", "warm_start: k is a whole number of at least 1, got 1.5"),
        ("warm_start(1, epochs=[(0, 1)])", "takes stages or first and last, not both"),
        (
            "warm_start(epochs=[(1, 1), (5, 16)])",
            r"the first from 0, each later than the one before, got \(\(1",
        ),
        ("warm_start(epochs=[(0, 1), (0, 2)])", "each later than the one before"),
        ("warm_start(epochs=[1, 2])", "stages are pairs"),
        ("warm_start(epochs=[])", "stages are pairs"),
        ("period()", "a window is a number of seconds above 0, got None"),
        ("period(-1)", "a window is a number of seconds above 0, got -1"),
        ("balanced(3)", r"balanced needs a policy, such as every\(16\), got 3"),
        ("balanced(every(1), busy=2)", "busy is a fraction of the round, 0 to 1, got 2"),
        ("hide(0)", "target is a fraction above 0 and at most 1, got 0"),
        ("qsr(0)", "qsr needs alpha above 0, got 0"),
        ("post_local(2, -1)", "post_local needs an epoch of at least 0, got -1"),
    ],
)
def test_what_is_wrong_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_qsr_needs_a_learning_rate():
    with pytest.raises(ValueError, match="qsr needs the round's learning rate, got lr=nan"):
        steps(qsr(0.2))


class Own(Policy):
    """A policy of somebody's own that gives what it was told to."""

    def __init__(self, gives):
        self.gives = gives

    def __call__(self, view):
        return self.gives


def test_a_policy_of_your_own_gives_numbers_for_all():
    assert ask(Own([2, 3.0]), RoundView(workers=2)).tolist() == [2, 3]
    assert Own(1).describe() == "Own()"
    for gives in (
        3,
        [2],
        [2, 2, 2],
        [[2, 2]],
        [2, math.nan],
        [-1, 2],
        [math.inf, 1],
        None,
        ["a", "b"],
        [[1], [2, 3]],
    ):
        with pytest.raises(
            ValueError, match=r"fetch: Own asks for .* in round 0; for 2 workers that must be as many"
        ):
            ask(Own(gives), RoundView(workers=2))
    with pytest.raises(ValueError, match="fetch is choose, which is no policy: derive a class"):
        as_policy(choose)


def choose(view):
    return [1] * view.workers
