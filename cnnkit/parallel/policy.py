"""What a fetch policy is, what it may look at, and how a number grows during training."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST = 1_000_000
"""No policy asks a worker for more steps than this: an epoch ends long before."""

_APART = 32.0
"""A measured speed further than this factor from the workers' median is taken for a fault of measuring."""

Stages = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RoundView:
    """What a policy may look at; the same in every process.

    Args:
        workers: W.
        round: rounds that are done.
        epochs: epochs that are done, with the fraction of the one under way.
        examples: examples that all workers have seen.
        lr: learning rate of the round's first step.
        speeds: mini-batches a second of each worker, smoothed, [W]; None before they are measured.
        step_seconds: seconds of a local step, used for all workers where speeds are not measured.
        exchange_seconds: seconds of an exchange, with what else a round costs beside its local phase; None before
            it is measured.
        delay: 1 if exchanges run while the next round computes, else 0.
    """

    workers: int
    round: int = 0
    epochs: float = 0.0
    examples: int = 0
    lr: float = math.nan
    speeds: Sequence[float] | np.ndarray | None = None
    step_seconds: float | None = None
    exchange_seconds: float | None = None
    delay: int = 0

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return int(self.epochs)

    def rates(self) -> np.ndarray | None:
        """Mini-batches a second of each worker, float64 [W], without what cannot be; None if unmeasured.

        A speed that is not a positive number becomes the median of the others, and one more than 32
        times from the median is brought to that bound.
        """
        if self.speeds is None:
            return None if not self.step_seconds else np.full(self.workers, 1 / self.step_seconds)
        rates = np.asarray(self.speeds, np.float64)
        if rates.shape != (self.workers,):
            raise ValueError(
                f"speeds has shape {rates.shape}; one for each of {self.workers} workers is needed"
            )
        sound = np.isfinite(rates) & (rates > 0)
        if not sound.any():
            return None
        median = np.median(rates[sound])
        return np.clip(np.where(sound, rates, median), median / _APART, median * _APART)


def smooth(history: Sequence[Sequence[float]] | np.ndarray, last: int = 5) -> tuple[float, ...] | None:
    """Each worker's speed as the median of its last measurements: one bad measurement changes nothing.

    A median over time is taken rather than a guard over workers, such as the 90th percentile in place
    of the maximum, because with a few workers such a guard bends true differences: of speeds 1 and
    0.5 it makes 0.95 and 0.5.

    Args:
        history: measured mini-batches a second, [rounds, W]; NaN where a worker took no step.
        last: how many of the latest rounds count.

    Returns:
        W speeds, NaN for a worker without any measurement; None without any round.

    >>> smooth([[10, 5], [10, 5], [0.1, 5]])
    (10.0, 5.0)
    """
    rows = np.asarray(history, np.float64)[-last:]
    if not rows.size:
        return None
    seen = [column[np.isfinite(column)] for column in rows.T]
    return tuple(float(np.median(column)) if len(column) else math.nan for column in seen)


class Policy:
    """The number of local steps of every worker in the next round."""

    def __call__(self, view: RoundView) -> np.ndarray:
        """Steps of each worker, int64 [W], each at least 1."""
        raise NotImplementedError

    def describe(self) -> str:
        """The policy as text that `parse` reads back."""
        shown, by_place = [], True
        fields: Sequence[Any] = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        for field in fields:
            value = getattr(self, field.name)
            usual = value == field.default
            by_place = by_place and not field.kw_only and not usual
            if by_place:
                shown.append(_text(value))
            elif not usual:
                shown.append(f"{field.name}={_text(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def ask(policy: Callable[[RoundView], Any], view: RoundView) -> np.ndarray:
    """What a policy asks for, float64 [W], held against being numbers of steps.

    Raises:
        ValueError: it is not one number from 0 on for each worker; the text shows what it is.
    """
    said = policy(view)
    try:
        wanted = np.asarray(said, np.float64)
    except (TypeError, ValueError):
        wanted = np.array(np.nan)
    if wanted.shape != (view.workers,) or not (np.isfinite(wanted) & (wanted >= 0)).all():
        raise ValueError(
            f"fetch: {type(policy).__name__} asks for {said!r} in round {view.round}; for {view.workers} workers "
            "that must be as many numbers of mini-batches, each at least 1"
        )
    return wanted


def _text(value: Any) -> str:
    return value.describe() if isinstance(value, Policy) else repr(value)


def steps(wanted: np.ndarray, most: int = MOST) -> np.ndarray:
    """Whole numbers of steps from 1 to most, int64, from floats that are whole."""
    return np.clip(wanted, 1, most).astype(np.int64)


def alike(view: RoundView, k: int) -> np.ndarray:
    """The same number of steps for all workers, int64 [W]."""
    return np.full(view.workers, min(max(k, 1), MOST), np.int64)


def is_number(value: Any) -> bool:
    """Whether a setting is a finite number, and no boolean."""
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def check_whole(policy: Policy, **values: Any) -> None:
    """Hold settings against being whole numbers of at least 1.

    Raises:
        ValueError: one is not; the text names the policy and the setting.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{type(policy).__name__}: {name} is a whole number of at least 1, got {value!r}"
            )


def frozen(value: Any) -> Any:
    """Stages as tuples, so that a policy can be hashed and compared; anything else as it is.

    >>> frozen([[0, 1], [5, 16]])
    ((0, 1), (5, 16))
    """
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Growth:
    """A number that grows from first to last, or by stages, over epochs or over rounds.

        value = first · (last / first)^min(1, t / T)

    Args:
        what: the policy's name, for errors.
        first, last: where it begins and ends; None with stages.
        epochs, rounds: T, or stages ``[(from, value), …]``; exactly one of the two.

    Raises:
        ValueError: settings that do not fit together; the text shows both forms.
    """

    what: str
    first: float | None
    last: float | None
    epochs: float | Sequence[Sequence[float]] | None
    rounds: float | Sequence[Sequence[float]] | None

    def __post_init__(self):
        forms = f"{self.what}(1, 16, epochs=5) or {self.what}(epochs=[(0, 1), (5, 16)]), or rounds in place of epochs"
        if (self.epochs is None) == (self.rounds is None):
            raise ValueError(f"{self.what} grows over epochs or over rounds, one of the two: {forms}")
        if self._staged:
            self._check_stages(forms)
        elif not is_number(self._span) or self._span <= 0:
            raise ValueError(
                f"{self.what}: epochs or rounds is a number above 0 or a list, got {self._span!r}: {forms}"
            )
        elif self.first is None or self.last is None:
            raise ValueError(f"{self.what} needs where it begins and where it ends: {forms}")

    def _check_stages(self, forms: str) -> None:
        if self.first is not None or self.last is not None:
            raise ValueError(f"{self.what} takes stages or first and last, not both: {forms}")
        pairs = all(isinstance(s, tuple | list) and len(s) == 2 and is_number(s[0]) for s in self._span)
        starts = [stage[0] for stage in self._span] if pairs else []
        if not starts or starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
            raise ValueError(
                f"{self.what}: stages are pairs (from, value), the first from 0, each later than the one before, "
                f"got {self._span!r}: {forms}"
            )

    @property
    def _span(self) -> Any:
        return self.rounds if self.epochs is None else self.epochs

    @property
    def _staged(self) -> bool:
        return isinstance(self._span, tuple | list)

    @property
    def values(self) -> list[Any]:
        """The values it begins with, passes and ends with."""
        return [stage[1] for stage in self._span] if self._staged else [self.first, self.last]

    def at(self, view: RoundView) -> float:
        """The value in force in the round of this view."""
        done = view.round if self.epochs is None else view.epochs
        if self._staged:
            return [value for start, value in self._span if done >= start][-1]
        first, last = self.values
        return first * (last / first) ** min(1.0, done / self._span)
