"""What a panel knows of its run: written by the training thread, read by the panel's, nothing drawn here."""

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from cnnkit.notebook import strips
from cnnkit.notebook.series import X
from cnnkit.notebook.strips import Strip

KEPT = 800
WINDOW = 10.0  # seconds over which rates and shares are taken
CLOCKS = ("train", "evaluate", "compile")


class Track:
    """Points in order; when there are too many every second one goes, and the newest is always there."""

    def __init__(self, most: int = KEPT) -> None:
        self.most, self._every, self._count = most, 1, 0
        self._points: list[Any] = []
        self._newest: Any = None

    def append(self, point: Any) -> None:
        """Add the newest point."""
        self._newest = point
        if self._count % self._every == 0:
            self._points.append(point)
            if len(self._points) > self.most:
                self._points = self._points[::2]
                self._every *= 2
        self._count += 1

    def points(self) -> list[Any]:
        """What was kept, oldest first."""
        at_end = self._points and self._points[-1] is self._newest
        return list(self._points) if at_end or self._newest is None else [*self._points, self._newest]

    def cut(self, keep: Any) -> None:
        """Drop points that are not to be kept: an interrupted run goes through them again."""
        self._points = [point for point in self._points if keep(point)]
        self._newest = self._points[-1] if self._points else None


class Live(NamedTuple):
    """The loss over one dispatch, and where it stands on each x axis."""

    epochs: float
    examples: float
    seconds: float
    loss: float


class Round(NamedTuple):
    """The counts of one recorded stretch of rounds, and where it stands on each x axis."""

    epochs: float
    examples: float
    seconds: float
    number: int
    fetch: tuple[int, ...]


class _Moment(NamedTuple):
    at: float
    examples: int
    clocks: dict[str, float]


class Progress:
    """The state of one training, from `begin` to `end`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.why, self.epochs, self.done, self.examples = "", 0, 0.0, 0
        self._run: Any = None
        self._paused_at: float | None = None
        self.title, self.folder, self.batch = "", "", 0
        self.epoch_rows: dict[int, dict[str, Any]] = {}
        self.live, self.rounds = Track(), Track()
        self.last_round: dict[str, Any] | None = None
        self.ticks = 0
        self.clocks = dict.fromkeys(CLOCKS, 0.0)
        self._recent: deque[_Moment] = deque()
        self._seen = 0
        self._round_seconds = 0.0
        self._busy: list[list[float]] = []
        self._exchanged = [0.0, 0.0]
        self._paused = 0.0
        self._begun = self._now = self._ended = time.monotonic()
        self._done_before, self._first = 0.0, _Moment(self._begun, 0, dict(self.clocks))

    @property
    def phase(self) -> str:
        """What the run does at this moment, or how it ended."""
        if self.why or self._run is None:
            return self.why or "starting"
        return self._run.phase if self.ticks else "compiling"

    # --- from the training thread -------------------------------------------------------------------

    def begin(self, run: Any) -> None:
        """Take in what the record holds already: the curve is the file."""
        with self.lock:
            self._run = run
            self.title, self.folder = str(run.data.name), "" if run.folder is None else str(run.folder)
            self.epochs, self.batch = run.epochs, run.batch
            self.done, self.examples, self._done_before = run.epochs_done, run.examples_seen, run.epochs_done
            self._take_rows(run.record.rows)
            self._now = time.monotonic()
            self.clocks = dict(run.clocks.seconds)
            self._first = _Moment(self._now, self.examples, dict(self.clocks))
            self._recent.append(self._first)

    def tick(self, run: Any) -> None:
        """Note where the run stands."""
        now = time.monotonic()
        with self.lock:
            if self._paused_at is not None:
                self._paused += now - self._paused_at
            self._paused_at = now if run.phase == "paused" else None
            self._now, self.epochs = now, run.epochs
            self.done, self.examples, self.clocks = (
                run.epochs_done,
                run.examples_seen,
                dict(run.clocks.seconds),
            )
            self.ticks += 1
            self._recent.append(_Moment(now, self.examples, self.clocks))
            while len(self._recent) > 2 and self._recent[1].at < now - WINDOW:
                self._recent.popleft()
            if math.isfinite(loss := run.recent_loss) and run.phase == "train":
                self.live.append(Live(self.done, self.examples, self.clocks["train"], loss))
            self._take_rows(run.record.rows)

    def end(self, run: Any, why: str) -> None:
        """Note how it ended."""
        with self.lock:
            self.why, self._run = why, None
            self.done, self.examples, self.clocks = (
                run.epochs_done,
                run.examples_seen,
                dict(run.clocks.seconds),
            )
            self._take_rows(run.record.rows)
            self._ended = time.monotonic()

    def _take_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows[self._seen :]:
            if row.get("kind") == "epoch":
                self.epoch_rows[row["epoch"]] = row
            elif row.get("kind") == "rounds":
                self._take_round(row)
        self._seen = len(rows)

    def _take_round(self, row: dict[str, Any]) -> None:
        if self.last_round is not None and row["round"] <= self.last_round["round"]:
            self.rounds.cut(lambda point: point.number < row["round"])
        self.last_round = row
        seconds = row.get("seconds") or 0.0
        self._round_seconds += seconds
        point = Round(row["epochs"], row["examples"], self._round_seconds, row["round"], tuple(row["fetch"]))
        self.rounds.append(point)
        self._busy += [[0.0, 0.0] for _ in range(len(row["fetch"]) - len(self._busy))]
        for sums, busy in zip(self._busy, row["busy"]):
            if busy is not None:
                sums[0] += busy * seconds
                sums[1] += seconds
        if row.get("exchange_seconds") is not None:
            self._exchanged[0] += row["exchange_seconds"] * row.get("rounds", 1)
            self._exchanged[1] += seconds

    # --- from the panel's thread --------------------------------------------------------------------

    def elapsed(self) -> float:
        """Seconds since the training was asked for, to its end."""
        return (self._ended if self.why else time.monotonic()) - self._begun

    def left(self) -> float:
        """Seconds that the rest should take at the pace so far, without pauses and compiling; nan if unknown."""
        went = self.done - self._done_before
        if went <= 0:
            return math.nan
        compiled = self.clocks["compile"] - self._first.clocks["compile"]
        active = self._now - self._first.at - self._paused - compiled
        return max(active, 0.0) * max(self.epochs - self.done, 0.0) / went

    def pace(self, whole: bool = False) -> float:
        """Training images a second on the training clock, lately or over the whole training; nan if unknown."""
        first = self._first if whole or not self._recent else self._recent[0]
        seconds = self.clocks["train"] - first.clocks["train"]
        return (self.examples - first.examples) / seconds if seconds > 0 else math.nan

    def strips(self, whole: bool = False) -> list[Strip]:
        """How each worker spends its time, lately or over the whole training; none where nothing was trained."""
        if self.last_round is None:
            return [] if self.why and not self.ticks else [self._alone(whole)]
        past = [point.fetch for point in self.rounds.points()[-60:]]
        row = dict(self.last_round)
        if whole:
            row["busy"] = [total / seconds if seconds else None for total, seconds in self._busy]
            part, seconds = self._exchanged
            row |= {"exchange_seconds": part, "rounds": 1, "seconds": seconds}
        workers = range(len(row["fetch"]))
        return [strips.of_round(row, w, [fetch[w] for fetch in past if w < len(fetch)]) for w in workers]

    def _alone(self, whole: bool) -> Strip:
        first = self._first if whole or not self._recent else self._recent[0]
        wall = (self._ended if self.why else time.monotonic()) - first.at
        if not self.ticks or wall <= 0:
            return Strip("worker 0", ())
        share = {kind: (self.clocks[kind] - first.clocks[kind]) / wall for kind in CLOCKS}
        looks = (("train", strips.BUSY, "busy"), ("evaluate", strips.EVALUATE, "evaluating"))
        parts = [(min(share[kind], 1.0), color, word) for kind, color, word in looks]
        if share["compile"] > 0.005:
            parts.append((min(share["compile"], 1.0), strips.COMPILE, "compiling"))
        rest = max(1 - sum(part for part, _, _ in parts), 0.0)
        return Strip("worker 0", (*parts, (rest, "", "waiting")))

    def curve(self, column: str, x: str) -> tuple[list[float], list[float]]:
        """A column of the finished epochs, and where they stand on an x axis."""
        rows = [row for _, row in sorted(self.epoch_rows.items()) if _known(row.get(column))]
        return [row[X[x][0]] for row in rows], [row[column] for row in rows]


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def last(rows: Mapping[int, dict[str, Any]], column: str) -> float:
    """The newest value of a column; nan where there is none."""
    found = [row[column] for _, row in sorted(rows.items()) if _known(row.get(column))]
    return found[-1] if found else math.nan
