"""Learning-rate and momentum schedules: pure functions of how far the training has come."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cnnkit.names import hinting

Rates = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Schedule:
    """Rates as a function of progress.

    Args:
        name: its kind.
        config: its settings, for the record.
        rates: ``rates(epoch, epochs) -> (lr, momentum)``; ``epoch`` is an array of fractional epochs done,
            ``epochs`` the whole training's; momentum is nan where the schedule leaves it to the optimizer.
    """

    name: str
    config: dict[str, Any]
    rates: Callable[[np.ndarray, float], Rates]

    def __call__(self, epoch: Any, epochs: float) -> Rates:
        lr, momentum = self.rates(np.asarray(epoch, np.float64), float(epochs))
        return lr.astype(np.float32), momentum.astype(np.float32)


def constant(lr: float) -> Schedule:
    """One learning rate throughout.

    >>> float(constant(0.1)(3.0, 10)[0])
    0.10000000149011612
    """
    _positive("constant", lr=lr)
    return Schedule("constant", {"lr": lr}, lambda epoch, epochs: _fixed_momentum(np.full_like(epoch, lr)))


def stages(*parts: tuple[float, ...]) -> Schedule:
    """Piecewise constant rates, the thesis's way: (lr, epochs) or (lr, momentum, epochs) one after another.

    The last stage goes on when training is longer than all stages together.

    >>> lr, momentum = stages((0.05, 0.9, 10), (0.01, 0.95, 10))(np.array([0.0, 9.9, 10.0, 30.0]), 20)
    >>> lr.round(2).tolist(), momentum.round(2).tolist()
    ([0.05000000074505806, 0.05000000074505806, 0.009999999776482582, 0.009999999776482582], [0.8999999761581421, 0.8999999761581421, 0.949999988079071, 0.949999988079071])
    """
    if not parts or any(len(part) not in (2, 3) for part in parts):
        raise ValueError(f"stages takes (lr, epochs) or (lr, momentum, epochs) tuples, not {parts!r}")
    for part in parts:
        _positive("stages", lr=part[0], epochs=part[-1])
        fraction("stages", momentum=part[1] if len(part) == 3 else 0.0)
    ends = np.cumsum([part[-1] for part in parts])
    lrs = np.array([part[0] for part in parts], np.float64)
    momenta = np.array([part[1] if len(part) == 3 else np.nan for part in parts])

    def rates(epoch, epochs):
        stage = np.minimum(np.searchsorted(ends, epoch + 1e-9, side="right"), len(parts) - 1)
        return lrs[stage], momenta[stage]

    return Schedule("stages", {"stages": [list(part) for part in parts]}, rates)


@hinting()
def cosine(peak: float, *, warmup: float = 0.0, final: float = 0.0) -> Schedule:
    """Linear warm-up to the peak, then half a cosine down to the final rate (Loshchilov & Hutter 2017).

    Args:
        peak: the highest learning rate.
        warmup: epochs of warm-up.
        final: the last learning rate.
    """
    _positive("cosine", peak=peak)
    not_negative("cosine", warmup=warmup, final=final)

    def rates(epoch, epochs):
        down = np.clip((epoch - warmup) / max(epochs - warmup, 1e-9), 0, 1)
        lr = final + (peak - final) * 0.5 * (1 + np.cos(math.pi * down))
        return _fixed_momentum(np.where(epoch < warmup, peak * (epoch + 1e-3) / max(warmup, 1e-9), lr))

    return Schedule("cosine", {"peak": peak, "warmup": warmup, "final": final}, rates)


@hinting()
def one_cycle(peak: float, *, rise: float = 0.25, start: float = 0.1, final: float = 0.0) -> Schedule:
    """Linear up to the peak, then linear down (Smith 2018).

    Args:
        peak: the highest learning rate.
        rise: the part of the training that the way up takes, 0 to 1.
        start: the first rate, as a part of the peak.
        final: the last rate, as a part of the peak.
    """
    _positive("one_cycle", peak=peak)
    if not 0 <= rise <= 1:
        raise ValueError(f"one_cycle: rise is a part of the training, 0 to 1, not {rise}")
    not_negative("one_cycle", start=start, final=final)

    def rates(epoch, epochs):
        part = np.clip(epoch / epochs, 0, 1)
        up = start + (1 - start) * part / max(rise, 1e-9)
        down = 1 + (final - 1) * (part - rise) / max(1 - rise, 1e-9)
        return _fixed_momentum(peak * np.where(part < rise, up, down))

    config = {"peak": peak, "rise": rise, "start": start, "final": final}
    return Schedule("one_cycle", config, rates)


def as_schedule(value: "Schedule | float") -> Schedule:
    """A number is a constant schedule."""
    return value if isinstance(value, Schedule) else constant(value)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "stages": stages,
    "cosine": cosine,
    "one_cycle": one_cycle,
}


def _fixed_momentum(lr: np.ndarray) -> Rates:
    return lr, np.full_like(lr, np.nan)


def fraction(what: str, **values: Any) -> None:
    """Hold settings against being at least 0 and below 1.

    Raises:
        ValueError: one is not; the text names it.
    """
    _check(what, values, lambda value: 0 <= value < 1, "at least 0 and below 1")


def not_negative(what: str, **values: Any) -> None:
    """Hold settings against being 0 or more.

    Raises:
        ValueError: one is not; the text names it.
    """
    _check(what, values, lambda value: value >= 0, "0 or more")


def _positive(what: str, **values: Any) -> None:
    _check(what, values, lambda value: value > 0, "a number above 0")


def _check(what: str, values: dict[str, Any], holds: Callable[[Any], bool], wanted: str) -> None:
    for name, value in values.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and holds(value)):
            raise ValueError(f"{what}: {name} is {value!r}; it must be {wanted}")
