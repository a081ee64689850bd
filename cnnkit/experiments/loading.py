"""Preload and asynchronous copy, each on and off: how long the device waits for images from disk."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnkit.experiments.base import Row, row

SETTINGS: dict[str, dict[str, bool]] = {
    "preload, asynchronous copy": {},
    "preload alone": {"asynchronous": False},
    "asynchronous copy alone": {"preload": False},
    "neither": {"preload": False, "asynchronous": False},
}
SLACK = 1.25
"""A step's time over the readers' for a batch: they can keep up."""


def rows(settings: Mapping[str, Any]) -> list[Row]:
    """The share of an epoch that the device waits for data, and its time over never waiting.

    Args:
        settings: ``images`` files of ``pixels`` × ``pixels`` in mini-batches of ``load_batch``, ``n`` times.
    """
    from cnnkit.data.readers import FolderReader

    made: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder), settings["images"], settings["pixels"])
        reader = FolderReader(folder, settings["pixels"])
        epoch(reader, settings["load_batch"], 0.0)
        for turn in range(settings["n"]):
            seconds, batches, _ = epoch(reader, settings["load_batch"], 0.0)
            step = SLACK * seconds / batches
            for name in list(SETTINGS)[:: 1 if turn % 2 == 0 else -1]:
                seconds, batches, waited = epoch(reader, settings["load_batch"], step, **SETTINGS[name])
                made[name].append((waited, seconds / (batches * step)))
    found = []
    for name, values in made.items():
        found.append(row(name, "waiting", [100 * share for share, _ in values], "%"))
        found.append(row(name, "of_max", [over for _, over in values], "×"))
    return found


def draw(root: Path, n: int, pixels: int) -> None:
    """n JPEG files of noise in two folders, a third larger than what is taken from them."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for i in range(n):
        coarse = random.integers(0, 256, (pixels // 4, pixels // 4, 3), np.uint8)
        folder = root / f"class {i % 2}"
        folder.mkdir(exist_ok=True)
        size = (pixels * 4 // 3, pixels * 4 // 3)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(
            folder / f"{i:05}.jpg", quality=90
        )


def epoch(reader: Any, batch: int, step: float, **settings: bool) -> tuple[float, int, float]:
    """(seconds, mini-batches, share of the time waited) of an epoch whose steps take so many seconds.

    From the first mini-batch on: its step counts, its reading does not.
    """
    from cnnkit.data.stream import Stream

    with Stream(reader, batch, **settings) as stream:  # type: ignore[arg-type]
        for _ in stream.epoch(0):
            time.sleep(step)
        report = stream.report
    # Without steps, what there is to measure lies between the first mini-batch and the last.
    batches = report.batches if step else max(report.batches - 1, 1)
    return report.seconds, batches, report.waiting_fraction
