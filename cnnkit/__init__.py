"""cnnkit: training convolutional networks on one device, several, and several machines.

    import cnnkit as ck

    run = ck.Run(ck.nets.lenet(), ck.load("mnist"), epochs=10, folder="runs/lenet")
    run.fit()

Names are looked up at first use: importing cnnkit takes milliseconds and touches no device, and a notebook's
panel, figures or a lab are only loaded by whoever asks for them.
"""

# ruff: noqa: F401

import importlib
import sys
from typing import TYPE_CHECKING, Any

from cnnkit.names import lacking

__version__ = "0.1.0"

if TYPE_CHECKING:  # the table below, for editors and type checkers
    from cnnkit import (
        augment,
        data,
        experiments,
        graph,
        lab,
        layers,
        losses,
        nets,
        notebook,
        parallel,
        record,
        train,
    )
    from cnnkit.data import Dataset, Split, from_arrays, from_folder, load
    from cnnkit.layers import (
        Layer,
        ShapeError,
        affine,
        avg_pool,
        batch_norm,
        branch,
        conv,
        dense,
        dropout,
        flatten,
        gelu,
        global_pool,
        identity,
        inception,
        leaky_relu,
        local,
        lrn,
        max_pool,
        nin,
        relu,
        residual,
        scaled_tanh,
        serial,
        sigmoid,
        silu,
        softmax,
        summary,
        tanh,
        whiten,
    )
    from cnnkit.notebook import plots
    from cnnkit.parallel import fetch, workers
    from cnnkit.train import optim
    from cnnkit.train.kept import keep_compiled
    from cnnkit.train.run import Run

_ROOMS = "augment data experiments graph lab layers losses nets notebook parallel record train"
_MODULES = {
    "fetch": "cnnkit.parallel.fetch",
    "optim": "cnnkit.train.optim",
    "plots": "cnnkit.notebook.plots",
    "workers": "cnnkit.parallel.workers",
    **{room: f"cnnkit.{room}" for room in _ROOMS.split()},
}
_NAMES = {
    "cnnkit.data": "Dataset Split from_arrays from_folder load",
    "cnnkit.layers": """
        Layer ShapeError affine avg_pool batch_norm branch conv dense dropout flatten gelu global_pool identity
        inception local
        leaky_relu lrn max_pool nin relu residual scaled_tanh serial sigmoid silu softmax summary tanh whiten
    """,
    "cnnkit.train.kept": "keep_compiled",
    "cnnkit.train.run": "Run",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        if name == "Run":
            sys.modules["cnnkit.train.report"].set_usual(_watcher)
    else:
        value = lacking("cnnkit", [*_MODULES, *_HOMES])(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HOMES})


def _watcher() -> Any:
    """The panel in a notebook; a bar in a terminal, and lines elsewhere."""
    return importlib.import_module("cnnkit.notebook.watch").default_watcher()
