"""Training: optimizers, schedules, steps and rounds, runs, and committees of them.

Names are looked up at first use, so that a schedule or a record is read without loading all of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table below, for editors and type checkers
    from cnnkit.train.judges import looks, vote
    from cnnkit.train.members import Committee, committee
    from cnnkit.train.views import Views

_HOMES = {
    "Committee": "members",
    "Views": "views",
    "committee": "members",
    "looks": "judges",
    "vote": "judges",
}

__all__ = ["Committee", "Views", "committee", "looks", "vote"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"cnnkit.train.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cnnkit.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
