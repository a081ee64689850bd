"""Watching, steering and looking: the panel, the GPU monitor, plots, views of networks and runs.

Names are looked up at first use, so that watching a run in a terminal loads neither matplotlib nor widgets.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table below, for editors and type checkers
    from cnnkit.notebook import look
    from cnnkit.notebook.augmented import contact_sheet
    from cnnkit.notebook.comparison import chooser, compare
    from cnnkit.notebook.devices import gpus
    from cnnkit.notebook.diagram import tour
    from cnnkit.notebook.graphs import draw, gantt
    from cnnkit.notebook.panel import Panel
    from cnnkit.notebook.plots import curves, rounds, save, training
    from cnnkit.notebook.range_test import lr_range
    from cnnkit.notebook.watch import default_watcher

_NAMES = {
    "augmented": "contact_sheet",
    "comparison": "chooser compare",
    "devices": "gpus",
    "diagram": "tour",
    "graphs": "draw gantt",
    "panel": "Panel",
    "plots": "curves rounds save training",
    "range_test": "lr_range",
    "watch": "default_watcher",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_MODULES = ("look", "plots")

__all__ = [
    "Panel",
    "chooser",
    "compare",
    "contact_sheet",
    "curves",
    "default_watcher",
    "draw",
    "gantt",
    "gpus",
    "look",
    "lr_range",
    "rounds",
    "save",
    "tour",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"cnnkit.notebook.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"cnnkit.notebook.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cnnkit.notebook' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
