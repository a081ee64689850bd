"""What the notebook's panel costs: LeNet on MNIST at full speed, with and without it, in turn, in a real kernel.

    python -m benchmarks.panel

This process is the frontend: it starts a Jupyter kernel, has one cell run there, and takes in every message. A
measurement is a number of epochs, from the watcher's beginning to its end, without the figure that the panel
draws when all is over; that figure's time is a row of its own. Writes results/panel.json, on a GPU panel_gpu.json.
"""

import argparse
import json
import statistics
import time
from typing import Any

import jax

import cnnkit as ck
from benchmarks import results

MARK = "measured: "


class Timed:
    """A watcher, and the seconds from its beginning to its end, and of its end.

    Args:
        inner: a watcher; None watches nothing.
    """

    def __init__(self, inner: Any = None) -> None:
        self.inner, self.seconds, self.at_end = inner, 0.0, 0.0

    def begin(self, run: Any) -> None:
        self._begun = time.perf_counter()
        self._tell("begin", run)

    def tick(self, run: Any) -> None:
        self._tell("tick", run)

    def row(self, run: Any, row: dict[str, Any]) -> None:
        self._tell("row", run, row)

    def end(self, run: Any, why: str) -> None:
        self.seconds = time.perf_counter() - self._begun
        begin = time.perf_counter()
        self._tell("end", run, why)
        self.at_end = time.perf_counter() - begin

    def _tell(self, what: str, *said: Any) -> None:
        if self.inner is not None:
            getattr(self.inner, what)(*said)


def measure(n: int, epochs: int, take: int | None) -> None:
    """In the kernel: n measurements each without a panel, with one, and in the background with controls."""
    from cnnkit.notebook import Panel

    run = ck.Run(ck.nets.lenet(), ck.load("mnist").take(train=take), batch=128, epochs=1, judge=())
    run.fit(panel=False)
    drawings: list[int] = []
    ends: list[float] = []
    shares: list[float] = []

    def seconds(panel: bool, background: bool = False) -> float:
        run.watch = watcher = Timed(Panel() if panel else None)
        (run.start if background else run.fit)(epochs=run.epochs + epochs)
        run.wait()
        if panel:
            drawings.append(watcher.inner.drawings)
            ends.append(watcher.at_end)
            shares.append(watcher.inner.drawing_seconds / watcher.seconds)
        return watcher.seconds

    seconds(panel=True)
    for first in (drawings, ends, shares):
        first.clear()
    cases = {
        "none": lambda: seconds(False),
        "fit": lambda: seconds(True),
        "start": lambda: seconds(True, background=True),
    }
    found: dict[str, Any] = results.in_turn(cases, n)
    found |= {"drawings": drawings, "ends": ends, "shares": shares, "device": jax.devices()[0].platform}
    print(MARK + json.dumps(found))


def in_a_kernel(code: str) -> str:
    """What a cell prints in a fresh kernel, its displays taken in as a frontend would."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    root = str(results.FOLDER.parents[1])
    NotebookClient(book, timeout=3600, resources={"metadata": {"path": root}}).execute()
    return "".join(o.text for o in book.cells[0].outputs if o.output_type == "stream" and o.name == "stdout")


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, default=7, help="measurements of each case")
    parser.add_argument("--epochs", type=int, default=1, help="in one measurement")
    parser.add_argument("--take", type=int, help="training images, all when left out")
    options = parser.parse_args()
    call = f"panel.measure({options.n}, {options.epochs}, {options.take})"
    said = in_a_kernel(f"from benchmarks import panel; {call}")
    found = json.loads(next(line for line in said.splitlines() if line.startswith(MARK))[len(MARK) :])
    more = {"images": options.take or 60_000, "batch": 128, "epochs": options.epochs}
    rows = []
    for case, way in (("fit", "lenet"), ("start", "lenet, in the background")):
        ratios = [ours / bare for ours, bare in zip(found[case], found["none"], strict=True)]
        rows.append(results.row(way, "over_no_panel", ratios, "×", **more))
    rows.append(
        results.row(
            "lenet", "seconds", found["fit"], "s", redraws=statistics.median(found["drawings"]), **more
        )
    )
    rows.append(results.row("lenet", "drawing_fraction", found["shares"], "fraction of one core"))
    rows.append(results.row("lenet", "last_figure_seconds", found["ends"], "s"))
    for row in rows:
        print(row)
    name = "panel" if found["device"] == "cpu" else f"panel_{found['device']}"
    print(results.write(name, rows, packages=("ipykernel", "ipywidgets", "matplotlib")))


if __name__ == "__main__":
    main()
