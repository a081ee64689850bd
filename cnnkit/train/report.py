"""Plain forms of progress: a bar in a terminal, one line an epoch where nobody watches."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from tqdm import tqdm

if TYPE_CHECKING:
    from cnnkit.train.run import Run


class Watcher(Protocol):
    """What a run tells while it trains. Calls come from the training thread."""

    def begin(self, run: "Run") -> None: ...
    def tick(self, run: "Run") -> None: ...
    def row(self, run: "Run", row: dict[str, Any]) -> None: ...
    def end(self, run: "Run", why: str) -> None: ...


class Nobody:
    """Is told and says nothing."""

    def begin(self, run: "Run") -> None:
        pass

    tick = begin

    def row(self, run: "Run", row: dict[str, Any]) -> None:
        pass

    def end(self, run: "Run", why: str) -> None:
        pass


class Silent(Nobody):
    """Says nothing: for all processes of a job but the first."""


class Lines:
    """One line an epoch."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file

    def begin(self, run: "Run") -> None:
        if (run.epoch or run.position) and run.epoch < run.epochs:
            self._say(f"goes on from epoch {run.epochs_done:.2f} of {run.epochs}")

    def tick(self, run: "Run") -> None:
        pass

    def row(self, run: "Run", row: dict[str, Any]) -> None:
        if row["kind"] == "epoch":
            self._say(epoch_line(row, run.epochs))

    def end(self, run: "Run", why: str) -> None:
        if why != "done":
            # Of one that failed, the error says what was kept.
            again = "; started again, it goes on from there" if why == "stopped" else ""
            self._say(f"{why} at epoch {run.epochs_done:.2f} of {run.epochs}{again}")

    def _say(self, text: str) -> None:
        print(text, file=self._file or sys.stdout, flush=True)


class Bar:
    """One bar over the whole run, with the time left; the phase is a word in it."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._bar: Any = None

    def begin(self, run: "Run") -> None:
        self._bar = tqdm(
            total=run.epochs,
            initial=run.epochs_done,
            file=self._file,
            unit="epoch",
            bar_format="{desc} {percentage:3.0f}%|{bar:24}| {n:.1f}/{total} epochs, {elapsed}<{remaining}{postfix}",
            desc=run.phase,
        )

    def tick(self, run: "Run") -> None:
        self._bar.set_description_str(run.phase, refresh=False)
        self._bar.update(run.epochs_done - self._bar.n)

    def row(self, run: "Run", row: dict[str, Any]) -> None:
        if row["kind"] == "epoch":
            self._bar.set_postfix_str(", ".join(_judged(row)), refresh=False)
            self.tick(run)

    def end(self, run: "Run", why: str) -> None:
        self._bar.set_description_str(why)
        self._bar.close()


PLAIN = (Silent, Lines, Bar)
"""Those that look at rows and never at the model."""


def plain() -> Watcher:
    """A bar where standard error is a terminal, else lines."""
    return Bar() if sys.stderr.isatty() else Lines()


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """An epoch's row as a person reads it."""
    seconds = row["train_seconds"] + row["evaluate_seconds"]
    return ", ".join(
        [
            f"epoch {row['epoch']}/{epochs}",
            f"train loss {row['train_loss']:.4f}",
            f"accuracy {100 * row['train_accuracy']:.2f} %",
            *_judged(row),
            f"{seconds:.1f} s",
        ]
    )


def judged(run: "Run") -> list[str]:
    """What the last epoch's evaluation found, part by part, as it reads in a run's title."""
    last = run.history[-1] if run.history else {}
    return [f"{p} {100 * last[f'{p}_accuracy']:.2f} %" for p in run.judge if f"{p}_accuracy" in last]


def _judged(row: dict[str, Any]) -> list[str]:
    names = {"held_out": "held out", "test": "test"}
    return [
        f"{name} {100 * row[f'{part}_accuracy']:.2f} %"
        for part, name in names.items()
        if f"{part}_accuracy" in row
    ]


_makes: Callable[[], Watcher] = plain


def usual() -> Watcher:
    """Who watches a run that was not given a watcher."""
    return _makes()


def set_usual(make: Callable[[], Watcher]) -> None:
    """Choose who that is."""
    global _makes
    _makes = make
