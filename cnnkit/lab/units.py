"""Rates and times as tc writes them: "100mbit", "1gbit", "1ms"."""

import re

BITS = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
BITS |= {"kibit": 2**10, "mibit": 2**20, "gibit": 2**30}
# tc's odd habit: "bps" means bytes a second.
BITS |= {"bps": 8, "kbps": 8 * 10**3, "mbps": 8 * 10**6, "gbps": 8 * 10**9}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

# tbf's classic rate field holds 32 bits of bytes a second.
LEAST_RATE, MOST_RATE = 10**3, 8 * (2**32 - 1)


def bits(rate: str | float) -> float:
    """Bits a second.

    Args:
        rate: a number (bits a second) or tc's notation: bit, kbit, mbit, gbit, and the bytes-a-second
            units bps, kbps, mbps, gbps.

    Raises:
        ValueError: not a rate, or one that the kernel's shaper cannot hold.

    >>> bits("100mbit")
    100000000.0
    >>> bits("1mbps")
    8000000.0
    """
    value = _parse(rate, BITS, "rate", '"100mbit", "1gbit"')
    if not LEAST_RATE <= value <= MOST_RATE:
        raise ValueError(
            f"rate {rate!r}: expected between 1kbit and 34gbit, which the link's shaper can hold"
        )
    return value


def seconds(time: str | float) -> float:
    """Seconds.

    Args:
        time: a number (seconds) or a text with a unit: s, ms, us.

    >>> seconds("20ms")
    0.02
    """
    value = _parse(time, SECONDS, "time", '"1ms", "500us", "0.1s"')
    if not 0 <= value <= 10:
        raise ValueError(f"time {time!r}: expected between 0 and 10s")
    return value


def words(rate: float) -> str:
    """A rate in tc's notation, in the largest unit that leaves a number of at least 1.

    >>> words(1e8)
    '100mbit'
    """
    for unit in ("gbit", "mbit", "kbit"):
        if rate >= BITS[unit]:
            return f"{rate / BITS[unit]:g}{unit}"
    return f"{rate:g}bit"


def _parse(text: str | float, units: dict[str, float] | dict[str, int], what: str, examples: str) -> float:
    if isinstance(text, int | float):
        return float(text)
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", str(text).lower())
    if not found or found[2] not in units:
        known = ", ".join(u for u in units if u)
        raise ValueError(
            f"{what} {text!r}: expected a number with a unit, such as {examples}. Units: {known}"
        )
    return float(found[1]) * units[found[2]]
