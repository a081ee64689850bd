"""Rates and times as tc writes them."""

import pytest

from cnnkit.lab import units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100mbit", 1e8),
        ("1gbit", 1e9),
        ("10gbit", 1e10),
        ("1kbit", 1e3),
        ("2.5GBit", 2.5e9),
        (" 100 mbit ", 1e8),
        ("5000", 5e3),
        ("1mibit", 1048576),
        ("12.5mbps", 1e8),
        (1e6, 1e6),
    ],
)
def test_rates(text, value):
    assert units.bits(text) == value


@pytest.mark.parametrize(("text", "value"), [("1ms", 1e-3), ("500us", 5e-4), ("0.1s", 0.1), (0.02, 0.02)])
def test_times(text, value):
    assert units.seconds(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["100mb", "fast", "-1mbit", "1gbit2", ""])
def test_what_is_no_rate(text):
    with pytest.raises(
        ValueError, match=r'expected a number with a unit, such as "100mbit".*Units: bit, kbit'
    ):
        units.bits(text)


@pytest.mark.parametrize("rate", ["999bit", "35gbit", 0])
def test_rates_that_the_shaper_cannot_hold(rate):
    with pytest.raises(ValueError, match="expected between 1kbit and 34gbit"):
        units.bits(rate)


def test_times_without_sense():
    with pytest.raises(ValueError, match=r"time '1': expected a number with a unit, such as \"1ms\""):
        units.seconds("1")
    with pytest.raises(ValueError, match="expected between 0 and 10s"):
        units.seconds("11s")


@pytest.mark.parametrize("text", ["1kbit", "100mbit", "2.5gbit"])
def test_words_and_back(text):
    assert units.words(units.bits(text)) == text
