"""Buttons and sliders that steer a run in the background."""

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from cnnkit.notebook.series import X

FOLLOWS = "the rates of a job are set by its first process"


class Controls:
    """The panel as a widget: its face, and under it what acts on the run.

    Args:
        run: whose ``control`` they change.
        x: what the curves run against.
        choose_x: is told when that changes.
        leads: whether this process sets the rates of its job.
    """

    def __init__(self, run: Any, x: str, choose_x: Callable[[str], None], leads: bool = True) -> None:
        self._run = run
        control = run.control
        self.face = widgets.HTML(layout={"width": "100%"})
        self.pause = widgets.Button(
            description="Pause", icon="pause", tooltip="hold after the dispatch in flight"
        )
        self.stop = widgets.Button(
            description="Stop", icon="stop", tooltip="end; fit() or start() goes on later"
        )
        kept = run.folder is not None
        self.save = widgets.Button(
            description="Checkpoint",
            icon="save",
            disabled=not kept,
            tooltip="write a checkpoint now"
            if kept
            else "this run has no folder; give it one: folder='runs/name'",
        )
        self.x = widgets.Dropdown(options=list(X), value=x, description="against", layout={"width": "200px"})
        self.lr = _slider(
            "lr ×", control.lr_scale, 10.0, 1.0, "factor on the learning rate, from the next dispatch on"
        )
        self.fetch = _slider(
            "fetch ×", control.fetch_scale, 2.0, 4.0, "factor on fetch_i, from the next round on"
        )
        self.pause.on_click(self._pause)
        self.stop.on_click(self._stop)
        self.save.on_click(self._save)
        self.x.observe(lambda change: choose_x(change["new"]), "value")
        self.lr.observe(lambda change: setattr(control, "lr_scale", change["new"]), "value")
        self.fetch.observe(lambda change: setattr(control, "fetch_scale", change["new"]), "value")
        sliders = [self.lr, self.fetch] if hasattr(run.engine, "fetch_scale") else [self.lr]
        if not leads:
            for slider in sliders:
                slider.disabled, slider.tooltip = True, FOLLOWS
        row = {"flex_flow": "row wrap", "align_items": "center"}
        rows = [
            self.face,
            widgets.Box([self.pause, self.stop, self.save, self.x], layout=row),
            widgets.Box(sliders, layout=row),
        ]
        self.said = ""
        self.box = widgets.VBox(rows, layout={"width": "100%"})
        self._all = [self.box, *rows, *rows[1].children, self.lr, self.fetch]

    def view(self) -> dict[str, Any]:
        """What stands for the widget in a bundle of forms."""
        return {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}

    def show(self, html: str) -> None:
        """Put in the newest face, and the words that fit the run's state."""
        paused = self._run.control.paused
        if self.said and not (self.said.startswith("pausing") and self._run.phase == "paused"):
            html += f'<div style="font:13px sans-serif;opacity:.8">{self.said}</div>'
        self.face.value = html
        self.pause.description, self.pause.icon = ("Resume", "play") if paused else ("Pause", "pause")

    def finish(self, html: str) -> None:
        """Let buttons and sliders go, and keep the face: a page that was loaded anew knows no other output."""
        self.box.children = [self.face]
        self.face.value = html
        _close([widget for widget in self._all if widget not in (self.box, self.face)])

    def close(self) -> None:
        """Let all widgets go, in the kernel and in the page."""
        _close(self._all)

    def _pause(self, _: Any) -> None:
        control = self._run.control
        if control.paused:
            control.resume()
            self.said = ""
            self.pause.description, self.pause.icon = "Pause", "pause"
        else:
            control.pause()
            self.said = "pausing: the dispatch in flight ends first"
            self.pause.description, self.pause.icon = "Resume", "play"

    def _stop(self, _: Any) -> None:
        self._run.control.stop()
        self.said = "stopping: the dispatch in flight ends first"
        self.stop.disabled = self.pause.disabled = True

    def _save(self, _: Any) -> None:
        self._run.control.save()
        self.said = f"a checkpoint goes to {self._run.folder} after the dispatch in flight"


def _close(some: list[Any]) -> None:
    for widget in some:
        for part in (widget, widget.layout, getattr(widget, "style", None)):
            if isinstance(part, widgets.Widget):
                part.close()


def _slider(name: str, value: float, base: float, reach: float, tooltip: str) -> Any:
    return widgets.FloatLogSlider(
        value=value,
        base=base,
        min=-reach,
        max=reach,
        step=reach / 20,
        description=name,
        tooltip=tooltip,
        readout_format=".2f",
        continuous_update=False,
        layout={"width": "300px"},
    )
