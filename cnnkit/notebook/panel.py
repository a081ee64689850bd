"""The live panel of a run: one output, moving while it trains, a figure and a table when it has ended."""

import base64
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from cnnkit.names import choose
from cnnkit.notebook import face
from cnnkit.notebook.hosts import Others, Writer
from cnnkit.notebook.machine import Machine
from cnnkit.notebook.monitor import Monitor
from cnnkit.notebook.progress import Progress
from cnnkit.notebook.series import X
from cnnkit.notebook.shown import Shown, after_each_cell

SAVED_EVERY = 60.0  # seconds between two updates of what a notebook saved meanwhile would hold
HELD = (
    "fit() holds this kernel, so no button could act: Interrupt (■) stops the training and keeps it. "
    "start() trains in the background, with buttons and sliders."
)
NO_WIDGETS = "Steer it from another cell: run.pause(), run.resume(), run.stop(), run.control.lr_scale = 0.5"


_finished: Any = None


def _linger(controls: Any) -> None:
    """Keep the face of the last panel that had one, and let the one before it go."""
    global _finished
    if _finished is not None:
        _finished.close()
    _finished = controls


class Panel:
    """Watches a run in a notebook.

    Nothing is printed and no output is cleared: the training thread fills a buffer, one thread draws it at
    most once a second into the panel's own output.

    Args:
        x: what curves run against: ``"epochs"``, ``"examples"`` or ``"seconds"``.
        seconds: the least time between two redraws.
        monitor: whether to read GPUs, CPUs and memory.
    """

    def __init__(self, x: str = "epochs", seconds: float = 1.0, monitor: bool = True) -> None:
        choose(x, X, "x")
        self.x, self.seconds, self._with_monitor = x, seconds, monitor
        self._shown = Shown()
        self._fresh()

    def _fresh(self) -> None:
        self.progress = Progress()
        self.controls: Any = None
        self.monitor: Monitor | None = None
        self._others: Others | None = None
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._final: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._saved_at = time.monotonic()
        self._note = ""
        self.drawings, self.drawing_seconds, self.failure = 0, 0.0, ""

    def show(self) -> "Panel":
        """Take a place in the cell that runs now, before the training begins."""
        if not self._shown.visible:
            self._shown.publish({"text/plain": "starting", "text/html": "starting"})
        return self

    # --- what a run tells ---------------------------------------------------------------------------

    def begin(self, run: Any) -> None:
        """Begin to draw."""
        if self._final is not None:
            self._shown = Shown()
            self._fresh()
        self.progress.begin(run)
        self.show()
        background = threading.current_thread() is not threading.main_thread()
        if background:
            after_each_cell(self._settle)
        else:
            self._note = HELD
        # Widgets and NVML take their time to start: none of it is the training's.
        self._thread = threading.Thread(
            target=self._work, args=(run, background), name="cnnkit panel", daemon=True
        )
        self._thread.start()

    def tick(self, run: Any) -> None:
        """Note where the run stands."""
        self.progress.tick(run)

    def row(self, run: Any, row: dict[str, Any]) -> None:
        """Note an epoch's row."""
        self.progress.tick(run)

    def end(self, run: Any, why: str) -> None:
        """Stop drawing, and leave what stays in the notebook."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None
        if self.monitor is not None:
            self.monitor.stop()
        self.progress.end(run, why)
        self._safely(lambda: self._finish(run))

    # --- inside -------------------------------------------------------------------------------------

    def _finish(self, run: Any) -> None:
        text = face.text(self.progress, self.monitor)
        if self.failure:
            text += f"\nthe live view failed: {self.failure}"
        self._final = {"text/plain": text}, {}
        try:
            self._final = self._last_bundle(run, text)
        finally:
            self._shown.publish(*self._final)
        if self.controls is not None:
            self._note = ""
            self.controls.finish(self._html())
            _linger(self.controls)
            self.controls = None

    def _watch(self, run: Any) -> None:
        write = None
        if jax.process_count() > 1 and run.folder is not None:
            write = Writer(run.folder, jax.process_index())
            self._others = Others(run.folder, jax.process_index())
        self.monitor = Monitor(Machine(jax.local_devices()), self.seconds, write).start()

    def _add_controls(self, run: Any) -> None:
        try:
            from cnnkit.notebook.controls import Controls
        except ImportError:
            self._note = NO_WIDGETS
            return
        self.controls = Controls(run, self.x, self._choose_x, jax.process_index() == 0)

    def _choose_x(self, x: str) -> None:
        self.x = x

    def _work(self, run: Any, background: bool) -> None:
        self._safely(lambda: self._open(run, background))
        wait = 0.2
        while not self._end.wait(wait):
            begin = time.thread_time()
            self._safely(self._draw)
            took = time.thread_time() - begin
            self.drawings, self.drawing_seconds = self.drawings + 1, self.drawing_seconds + took
            wait = max(self.seconds, 200 * took)

    def _safely(self, action: Callable[[], None]) -> None:
        """Whatever fails in a view must never end a training."""
        try:
            action()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _open(self, run: Any, background: bool) -> None:
        if self._with_monitor:
            self._watch(run)
        if background:
            self._add_controls(run)
        self._shown.publish(*self._bundle())

    def _draw(self) -> None:
        """Put the newest state into the output."""
        if self.controls is None:
            self._shown.publish(*self._bundle())
            return
        self.controls.show(self._html())
        if time.monotonic() - self._saved_at > SAVED_EVERY:
            self._saved_at = time.monotonic()
            self._shown.publish(*self._bundle())

    def _html(self) -> str:
        others = self._others.read() if self._others else []
        return face.live_html(self.progress, self.monitor, others, self.x, self._note)

    def _bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {
            "text/plain": face.text(self.progress, self.monitor),
            "text/html": self._html(),
        }
        if self.controls is not None:
            self.controls.show(data["text/html"])
            data["application/vnd.jupyter.widget-view+json"] = self.controls.view()
        return data, {}

    def _last_bundle(self, run: Any, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {"text/plain": text}
        metadata: dict[str, Any] = {}
        png, width, height = None, 0, 0
        if self.progress.epoch_rows:
            from cnnkit.notebook import plots, style

            figure = plots.training(run, self.x)
            png = figure.png(colors=64)
            width, height = (round(style.CSS_DPI * inches) for inches in figure.get_size_inches())
            data["image/png"] = base64.b64encode(png).decode()
            metadata["image/png"] = {"width": width, "height": height}
        data["text/html"] = face.final_html(self.progress, self.monitor, png, width, height)
        return data, metadata

    def _settle(self) -> bool:
        """After a cell: say the final state again in its name, since a reader may have missed it between cells."""
        if self._final is None:
            return False
        self._shown.publish(*self._final)
        return True
