"""What a round costs, by numbers worked out by hand."""

import numpy as np
import pytest

from cnnkit.parallel.cost import Link, RoundCost, curve, fit
from cnnkit.parallel.fetch import RoundView, balanced, every, hide
from cnnkit.parallel.traffic import sent_bytes

MB25 = 25_000_000 // 4


def test_exchange_over_shaped_links():
    """Against what was measured: a psum of 25 MB over 2 nodes, 209 ms at 1 Gbit, 2.1 s at 100 Mbit."""
    traffic = sent_bytes(MB25, 2)
    assert Link(1e9).seconds(traffic) == pytest.approx(0.209, rel=0.01)
    assert Link(1e8).seconds(traffic) == pytest.approx(2.1, rel=0.01)


def test_exchange_over_a_medium_shared_by_both_directions():
    """Against what was measured behind one loopback: 41 ms at 10 Gbit, 400 ms at 1 Gbit."""
    traffic = sent_bytes(MB25, 2)
    assert Link(1e10, efficiency=1, shared=True).seconds(traffic) == pytest.approx(0.041, rel=0.03)
    assert Link(1e9, efficiency=1, shared=True).seconds(traffic) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("how", "payload", "hops", "serial"),
    [
        ("psum", "float32", 6, 2 * 3 * 1024),  # 1,024 values to 4 workers: segments of 256, 1,024 bytes
        ("ring", "float32", 6, 6 * 1024),
        ("ring", "bfloat16", 6, 6 * 512),
        ("ring", "int8", 6, 6 * 260),
        ("tree", "float32", 4, 4 * 4096),
        ("redundant", "float32", 1, 3 * 4096),
        ("server", "float32", 6, 6 * 4096),
    ],
)
def test_each_algorithm_by_hand(how, payload, hops, serial):
    link = Link(rate=8e6, latency=0.01, efficiency=1.0)  # a byte a microsecond
    seconds = link.seconds(sent_bytes(1024, 4, how, payload))
    assert seconds == pytest.approx(0.01 * hops + 1e-6 * serial, rel=1e-12)


def test_a_round_that_waits():
    cost = RoundCost(step_seconds=[0.1, 0.2], fetch=[4, 3], exchange_seconds=0.15, overhead=0.05)
    assert cost.seconds == pytest.approx(0.8)
    assert cost.busy.tolist() == pytest.approx([0.5, 0.75])
    assert cost.throughput(batch=16) == pytest.approx(7 * 16 / 0.8)
    assert cost.of_ideal == pytest.approx((7 / 0.8) / 15)


@pytest.mark.parametrize(
    ("exchange", "hidden", "seconds"),
    [(0.3, 1.0, 0.6), (0.9, 1.0, 0.9), (0.3, 0.5, 0.75), (2.0, 0.5, 2.0), (0.3, 0.0, 0.9)],
)
def test_a_round_that_overlaps(exchange, hidden, seconds):
    cost = RoundCost([0.1, 0.2], [4, 3], exchange, delay=1, hidden=hidden)
    assert cost.seconds == pytest.approx(seconds)


def test_unlucky_steps_make_many_workers_wait():
    steady = RoundCost(0.1, [4] * 1000)
    uneven = RoundCost(0.1, [4] * 1000, jitter=0.1)
    assert steady.seconds == pytest.approx(0.4)
    # The largest of 1,000 standard normal numbers is 3.241 on average; the deviation of 4 steps is 0.02 s.
    assert uneven.seconds == pytest.approx(0.4 + 3.241 * 0.02, rel=1e-3)
    drawn = np.random.default_rng(0).normal(0.1, 0.01, (2000, 8, 4)).sum(2).max(1).mean()
    assert RoundCost(0.1, [4] * 8, jitter=0.1).seconds == pytest.approx(drawn, rel=2e-3)
    assert RoundCost(0.1, [4], jitter=0.1).seconds == pytest.approx(0.4)


def test_fit_finds_latency_and_rate():
    traffic = [
        sent_bytes(n, w, how) for n in (10, 10**5, 10**6) for w in (2, 4) for how in ("ring", "redundant")
    ]
    true = Link(3e8, 0.002, efficiency=1.0)
    link = fit(traffic, [true.seconds(t) for t in traffic])
    assert link.rate == pytest.approx(3e8, rel=1e-6)
    assert link.latency == pytest.approx(0.002, rel=1e-6)
    shared = fit([sent_bytes(MB25, 2)], [0.4], shared=True)
    assert (shared.rate, shared.latency) == (pytest.approx(1e9), 0.0)


def test_fit_never_takes_a_negative_latency():
    sizes = [sent_bytes(n, 2) for n in (10**5, 10**6)]
    link = fit(sizes, [0.001, 0.0105])
    assert link.latency == 0.0
    assert 32e6 / 0.0105 < link.rate < 3.2e6 / 0.001


def test_what_cannot_be_fitted_is_said():
    with pytest.raises(ValueError, match="a time above 0 for each exchange, got 1 and"):
        fit([sent_bytes(1, 2)], [])
    with pytest.raises(ValueError, match="take longer the more they send"):
        fit([sent_bytes(10**5, 2), sent_bytes(10**6, 2)], [1.0, 0.5])
    with pytest.raises(ValueError, match=r"a link needs rate > 0 \(bits a second\).*got rate=0"):
        Link(0)


def test_curve_to_a_thousand_nodes():
    plain = curve(0.02, MB25, Link(1e8), [1, 10, 1000], batch=64)
    assert [p.workers for p in plain] == [1, 10, 1000]
    assert plain[0].examples_per_s == pytest.approx(3200)
    exchange = 2 * 9 * (MB25 // 10 * 4) * 8 / (1e8 * 1448 / 1514)
    assert plain[1].exchange_seconds == pytest.approx(exchange)
    assert plain[1].examples_per_s == pytest.approx(10 * 64 / (0.02 + exchange))
    hidden = curve(0.02, MB25, Link(1e8), [1000], fetch=hide(0.95), delay=1)
    assert hidden[0].of_ideal == pytest.approx(0.95, abs=0.01)
    assert hidden[0].fetch == np.ceil(0.95 * plain[2].exchange_seconds / 0.02)


def test_balanced_rounds_of_unequal_workers_cost_what_they_should():
    speeds = np.array([1.0, 0.5])
    view = RoundView(workers=2, speeds=speeds)
    equal = RoundCost(1 / speeds, every(16)(view).tolist())
    shared = RoundCost(1 / speeds, balanced(every(16))(view).tolist())
    assert equal.busy.tolist() == [0.5, 1.0]
    assert shared.busy.tolist() == [1.0, 1.0]
    assert shared.throughput() / equal.throughput() == pytest.approx(1.5)
