"""The face of a panel: its state as HTML while it lives, as a figure and a table when it has ended, as text."""

import base64
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from cnnkit.notebook import sketch, strips
from cnnkit.notebook.hosts import Other
from cnnkit.notebook.monitor import Monitor
from cnnkit.notebook.progress import Progress, last
from cnnkit.notebook.series import PARTS, X
from cnnkit.notebook.sketch import Line

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
COLORS = {"train": "#D55E00", "held_out": "#009E73", "test": "#0072B2"}
DASHES = {"train": "--", "held_out": "-.", "test": "-"}
NAMES = {"train": "training", "held_out": "held out", "test": "test"}
BOX = "font:13px/1.5 sans-serif;max-width:1240px;overflow-x:auto"
ENDS = {
    "done": "done",
    "stopped": "stopped: run.fit() or run.start() goes on from here",
    "failed": "failed: the error stands below its cell, or comes from run.wait()",
}
BEFORE = "nothing was left to train, run.fit(epochs=…) with a larger number goes on"
WORDS = {"train": "training", "evaluate": "evaluating"}


def live_html(
    progress: Progress, monitor: Monitor | None, others: Sequence[Other], x: str, note: str = ""
) -> str:
    """The panel of a run that trains."""
    with progress.lock:
        parts = [_bar(progress), _charts(progress, x), _section("workers", _workers(progress))]
    if monitor is not None:
        parts.append(_section("devices", _devices(monitor, others)))
    if note:
        parts.append(f'<div style="opacity:.8;margin-top:4px">{escape(note)}</div>')
    return f'<div style="{BOX}">{"".join(parts)}</div>'


def final_html(
    progress: Progress, monitor: Monitor | None, png: bytes | None, width: int, height: int
) -> str:
    """The panel of a run that has ended: a figure and tables that need neither kernel nor widgets."""
    picture = _img(png, "curves of the training", width, height) if png else ""
    with progress.lock:
        table = results_html(progress)
        workers = progress.strips(whole=True)
        told = _section("workers", strips.workers_html(workers)) if workers else ""
        parts = [_bar(progress), picture, table, told]
    if monitor is not None:
        cells = [
            [escape(s.device), *map(escape, strips.summary_cells(monitor, s.device))]
            for s in monitor.latest()
        ]
        notes = "".join(
            f'<div style="opacity:.75">{escape(n)}</div>' for n in strips.missing(monitor.latest())
        )
        parts.append(_section("devices", strips.table(cells) + notes))
    return f'<div style="{BOX}">{"".join(parts)}</div>'


def text(progress: Progress, monitor: Monitor | None) -> str:
    """The same in plain words, for whatever shows neither HTML nor images."""
    with progress.lock:
        ended = bool(progress.why)
        lines = [headline(progress), facts(progress)]
        for part, accuracy, loss in results(progress):
            lines.append(f"{part}: accuracy {accuracy}, loss {loss}")
        lines += strips.workers_text(progress.strips(whole=ended))
    if monitor is not None:
        if ended:
            for s in monitor.latest():
                lines.append(
                    f"{s.device}: {', '.join(c for c in strips.summary_cells(monitor, s.device) if c)}"
                )
        else:
            lines += strips.devices_text(monitor.latest())
    return "\n".join(line for line in lines if line)


def headline(progress: Progress) -> str:
    """Data, epoch and phase."""
    phase = progress.phase
    phase = ENDS.get(phase, WORDS.get(phase, phase))
    return f"{progress.title}: epoch {progress.done:.1f} of {progress.epochs}, {phase}"


def facts(progress: Progress) -> str:
    """Times and rates in one line."""
    ended = bool(progress.why)
    told = [BEFORE] if progress.why == "done" and not progress.ticks else []
    told += [f"took {clock(progress.elapsed())}" if ended else f"{clock(progress.elapsed())} elapsed"]
    if not ended and (left := progress.left()) == left:
        told.append(f"about {clock(left)} left")
    if (pace := progress.pace(whole=ended)) == pace:
        told.append(f"{pace:,.0f} images/s")
        if progress.batch and progress.last_round is None:
            told.append(f"{_short(1000 * progress.batch / pace)} ms a mini-batch of {progress.batch}")
    seconds = progress.clocks
    spent = "in all training {train:.1f} s, evaluating {evaluate:.1f} s, compiling {compile:.1f} s"
    told.append(spent.format(**seconds))
    if ended and progress.folder:
        told.append(f"kept in {progress.folder}")
    return "; ".join(told)


def picture_html(figure: Any, says: str) -> str:
    """A figure as an image that lies in the HTML itself.

    Args:
        figure: a `style.Picture`.
        says: what it shows, for those who cannot see it.
    """
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return _img(figure.png(colors=64), says, width, height)


def results(progress: Progress) -> list[tuple[str, str, str]]:
    """(part, accuracy, loss) of the newest epoch that has them."""
    found = []
    for part in PARTS:
        accuracy = last(progress.epoch_rows, f"{part}_accuracy")
        loss = last(progress.epoch_rows, f"{part}_loss")
        if accuracy == accuracy:
            found.append((NAMES[part], f"{100 * accuracy:.2f} %", f"{loss:.4f}"))
    return found


def results_html(progress: Progress) -> str:
    """The newest accuracies and losses as a table."""
    found = results(progress)
    if not found:
        return ""
    head = ["", "<b>accuracy</b>", "<b>loss</b>"]
    return strips.table([head, *([f"<b>{part}</b>", accuracy, loss] for part, accuracy, loss in found)])


def clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> [clock(5), clock(65), clock(3700)]
    ['0:05', '1:05', '1:01:40']
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _img(png: bytes, says: str, width: int, height: int) -> str:
    source = base64.b64encode(png).decode()
    return (
        f'<img alt="{escape(says)}" src="data:image/png;base64,{source}" width="{width}" height="{height}" '
        'style="max-width:100%;height:auto">'
    )


def _bar(progress: Progress) -> str:
    share = progress.done / progress.epochs if progress.epochs else 0.0
    return (
        f"<div><b>{escape(headline(progress))}</b></div>"
        f'<div style="margin:2px 0">{sketch.shares([(share, strips.BUSY)], 560, 10)}</div>'
        f"<div>{escape(facts(progress))}</div>"
    )


def _charts(progress: Progress, x: str) -> str:
    loss, accuracy = [], []
    live = progress.live.points()
    if live:
        xs = [getattr(point, x) for point in live]
        loss.append(Line(xs, [point.loss for point in live], "", COLORS["train"], faint=True))
    for part in PARTS:
        look: dict[str, Any] = {"name": NAMES[part], "color": COLORS[part], "style": DASHES[part]}
        if (found := progress.curve(f"{part}_loss", x))[0]:
            loss.append(Line(*found, **look))
        if (found := progress.curve(f"{part}_accuracy", x))[0]:
            accuracy.append(Line(found[0], [100 * a for a in found[1]], **look))
    name = X[x][1]
    charts = [sketch.chart(loss, name, "loss"), sketch.chart(accuracy, name, "accuracy (%)")]
    if progress.last_round is not None:
        charts.append(sketch.chart(_fetch_lines(progress, x), name, "fetch_i (local steps)", counts=True))
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px 12px;margin-top:4px">{"".join(charts)}</div>'


def _fetch_lines(progress: Progress, x: str) -> list[Line]:
    points: list[Any] = progress.rounds.points()
    xs = [getattr(point, x) for point in points]
    workers = min(len(points[-1].fetch), len(OKABE_ITO))
    same = all(len(set(point.fetch)) == 1 for point in points)
    lines = []
    for worker in range(1 if same else workers):
        ys = [point.fetch[worker] if worker < len(point.fetch) else math.nan for point in points]
        style = list(sketch.DASHES)[worker % 4]
        name = "all workers" if same and workers > 1 else f"{worker}"
        lines.append(Line(xs, ys, name, OKABE_ITO[worker], style, steps=True))
    return lines


def _workers(progress: Progress) -> str:
    return strips.workers_html(progress.strips())


def _devices(monitor: Monitor, others: Sequence[Other]) -> str:
    told = strips.devices_html(monitor.latest(), monitor) + strips.others_html(others)
    if monitor.machine.why_no_gpu:
        told += f'<div style="opacity:.75">no GPU readings: {escape(monitor.machine.why_no_gpu)}</div>'
    return told + (escape(monitor.failure) if monitor.failure else "")


def _section(name: str, inside: str) -> str:
    return f'<div style="margin-top:6px"><b>{name}</b>{inside}</div>'


def _short(value: float) -> str:
    return f"{value:.3g}"
