"""Watching, steering and looking: the panel, the GPU monitor, plots, views of networks and runs.

Names are looked up at first use, so that watching a run in a terminal loads neither matplotlib nor widgets.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cnnkit.notebook.devices import gpus
    from cnnkit.notebook.panel import Panel
    from cnnkit.notebook.plots import curves, rounds, save, training
    from cnnkit.notebook.watch import default_watcher

_HOMES = {
    "Panel": "panel",
    "curves": "plots",
    "default_watcher": "watch",
    "gpus": "devices",
    "rounds": "plots",
    "save": "plots",
    "training": "plots",
}

__all__ = ["Panel", "curves", "default_watcher", "gpus", "rounds", "save", "training"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cnnkit.notebook' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cnnkit.notebook.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
