"""Strips: one row a worker and one a device, as HTML with small bars, and as plain text."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from cnnkit.notebook import sketch
from cnnkit.notebook.hosts import SILENT, Other
from cnnkit.notebook.monitor import Monitor
from cnnkit.notebook.nvml import Sample

BUSY, EXCHANGE, EVALUATE, COMPILE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
MOST_STRIPS = 16
CELL = "text-align:left;border:none;padding:1px 10px 1px 0;vertical-align:middle;max-width:none"
UNITS = {
    "utilization": "%",
    "process": "%",
    "memory_used": "B",
    "memory_total": "B",
    "power": "W",
    "temperature": "°C",
    "jax_memory": "B",
    "process_memory": "B",
}
NAMES = {
    "memory_used": "memory",
    "memory_total": "memory",
    "jax_memory": "JAX's memory",
    "jax_limit": "JAX's memory",
}


class Strip(NamedTuple):
    """How a worker spent its time, as shares of it.

    Args:
        name: of the worker.
        parts: (share, colour, word) each.
        fetch: local steps in a round; None for a worker without rounds.
        history: its recent fetch, oldest first.
    """

    name: str
    parts: tuple[tuple[float, str, str], ...]
    fetch: int | None = None
    history: tuple[float, ...] = ()


def of_round(row: Mapping[str, Any], worker: int, history: Sequence[float] = ()) -> Strip:
    """A worker's strip from a row of rounds: busy, exchanging what busy time does not hide, waiting.

    Args:
        row: of the record.
        worker: its number.
        history: its fetch in the rounds before.
    """
    busy, exchange = row["busy"][worker], row.get("exchange_seconds")
    name, fetch = f"worker {worker}", row["fetch"][worker]
    if busy is None:
        return Strip(name, (), fetch, tuple(history))
    seconds = max(row.get("seconds") or 0.0, 1e-9)
    part = min(max(1 - busy, 0.0), (exchange or 0.0) * row.get("rounds", 1) / seconds)
    parts = ((busy, BUSY, "busy"), (part, EXCHANGE, "exchanging"), (max(1 - busy - part, 0.0), "", "waiting"))
    return Strip(name, parts, fetch, tuple(history))


def workers_html(strips: Sequence[Strip]) -> str:
    """A table with one row a worker."""
    rows = []
    for strip in strips[:MOST_STRIPS]:
        bar = sketch.shares([(share, color) for share, color, _ in strip.parts if color])
        cells = [strip.name.replace(" ", "&nbsp;"), bar, _shares_html(strip)]
        if strip.fetch is not None:
            top = max(strip.history, default=strip.fetch) or 1
            line = sketch.spark(strip.history, top * 1.1, EXCHANGE, 70) if len(strip.history) > 1 else ""
            cells += [f"fetch&nbsp;<b>{strip.fetch}</b>", line]
        rows.append(cells)
    more = len(strips) - MOST_STRIPS
    note = f'<div style="opacity:.75">and {more} more workers</div>' if more > 0 else ""
    return table(rows) + note


def workers_text(strips: Iterable[Strip]) -> list[str]:
    """A line a worker."""
    lines = []
    for strip in strips:
        fetch = "" if strip.fetch is None else f", fetch {strip.fetch}"
        lines.append(f"{strip.name}: {_shares_text(strip)}{fetch}")
    return lines


def devices_html(samples: Sequence[Sample], monitor: Monitor | None = None) -> str:
    """A table with one row a device, the recent past as a line where a monitor knows it."""
    rows = [_head(samples)] if monitor else []
    for sample in samples:
        used, total = _of(sample, "memory_used"), _of(sample, "memory_total")
        full = sketch.shares([(used / total, BUSY)], 70) if total > 0 else ""
        past = sketch.spark(monitor.recent(sample.device, "utilization"), 100, BUSY, 90) if monitor else ""
        texts = [_kept_together(text) for text in device_cells(sample)]
        rows.append([escape(sample.device), past, texts[0], full, *texts[1:]])
    notes = "".join(f'<div style="opacity:.75">{escape(note)}</div>' for note in missing(samples))
    return table(rows) + notes


def others_html(others: Sequence[Other]) -> str:
    """The devices of the job's other processes."""
    out = []
    for other in others:
        quiet = f", silent for {other.age:.0f} s" if other.age > SILENT else ""
        out.append(f'<div style="margin-top:4px">{escape(other.name + quiet)}</div>')
        if not quiet:
            out.append(devices_html(other.samples))
    return "".join(out)


def devices_text(samples: Iterable[Sample]) -> list[str]:
    """A line a device, and one for each reason that something is missing."""
    samples = list(samples)
    lines = []
    for sample in samples:
        cells = device_cells(sample)
        told = [cells[0], f"memory {cells[1]}", *(text for text in cells[2:] if text)]
        lines.append(f"{sample.device}: {', '.join(told)}")
    return lines + missing(samples)


def device_cells(sample: Sample) -> list[str]:
    """Utilization, memory, power and temperature as texts; "n/a" where they are missing, never 0."""
    utilization = _told(sample, "utilization")
    if "process" in sample.values:
        utilization += f", this process {_told(sample, 'process')}"
    memory = _told(sample, "memory_used")
    if "memory_total" in sample.values:
        memory += f" of {_told(sample, 'memory_total')}"
    if "process_memory" in sample.values:
        memory += f", this process {_told(sample, 'process_memory')}"
    if "jax_memory" in sample.values:
        memory += f", JAX {_told(sample, 'jax_memory')}"
    both = [_told(sample, name) for name in ("power", "temperature")]
    return [utilization, memory, *both]


def missing(samples: Iterable[Sample]) -> list[str]:
    """Which readings are n/a, and why: one line for each device and reason."""
    lines = []
    for sample in samples:
        reasons: dict[str, list[str]] = {}
        for reading, reason in sample.missing.items():
            names = reasons.setdefault(reason, [])
            if (name := NAMES.get(reading, reading)) not in names:
                names.append(name)
        lines += [f"{sample.device}: {', '.join(names)} n/a: {reason}" for reason, names in reasons.items()]
    return lines


def summary_cells(monitor: Monitor, device: str) -> list[str]:
    """A device over a whole run: mean and largest utilization, most memory, mean power, highest temperature."""
    mean, most = monitor.mean(device, "utilization"), monitor.most(device, "utilization")
    cells = [f"mean {mean:.0f} %, most {most:.0f} %" if mean == mean else "n/a"]
    for name, word, of in (
        ("memory_used", "memory up to", monitor.most),
        ("power", "mean", monitor.mean),
        ("temperature", "up to", monitor.most),
    ):
        value = of(device, name)
        cells.append(f"{word} {shown(value, UNITS[name])}" if value == value else "")
    return cells


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of HTML cells, without borders or stripes, whatever the page does to tables."""
    body = "".join(
        '<tr style="background:transparent">' + "".join(f'<td style="{CELL}">{c}</td>' for c in row) + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse;border:none;margin:2px 0;font-size:12px">{body}</table>'


def shown(value: float, unit: str) -> str:
    """A number with its unit, bytes as GB of 10⁹.

    >>> [shown(97.2, "%"), shown(141.2e9, "B"), shown(0.35e9, "B"), shown(312.4, "W")]
    ['97 %', '141 GB', '0.35 GB', '312 W']
    """
    if unit == "B":
        return f"{value / 1e9:.3g} GB"
    return f"{value:.0f} {unit}"


def _head(samples: Sequence[Sample]) -> list[str]:
    power = "power" if any("power" in s.values or "power" in s.missing for s in samples) else ""
    return [
        f'<span style="opacity:.75">{name}</span>' for name in ("", "utilization", "", "memory", "", power)
    ]


def _kept_together(text: str) -> str:
    """A text whose numbers stay on one line with their units."""
    return re.sub(r"(?<=\d) (?=%|GB|W|°C)", "&nbsp;", escape(text))


def _of(sample: Sample, name: str) -> float:
    return sample.values.get(name, math.nan)


def _told(sample: Sample, name: str) -> str:
    if name in sample.values:
        return shown(sample.values[name], UNITS[name])
    return "n/a" if name in sample.missing else ""


def _shares_html(strip: Strip) -> str:
    if not strip.parts:
        return "busy share not measured yet"
    told = []
    for share, color, word in strip.parts:
        look = f"color:{color}" if color else "opacity:.3"
        told.append(f'<span style="{look}">■</span>&nbsp;{word}&nbsp;{100 * share:.0f}&nbsp;%')
    return " &nbsp;".join(told)


def _shares_text(strip: Strip) -> str:
    if not strip.parts:
        return "busy share not measured yet"
    return ", ".join(f"{word} {100 * share:.0f} %" for share, _, word in strip.parts)
