"""One output of a notebook, replaced in place and never cleared."""

import sys
import uuid
from collections.abc import Callable
from typing import Any


class Shown:
    """An output that appears in the cell that first publishes it, and changes there ever after."""

    def __init__(self) -> None:
        self._id = f"cnnkit-{uuid.uuid4().hex}"
        self.visible = False

    def publish(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Show a bundle of forms (by MIME type), or replace what is shown; from any thread."""
        from IPython.display import publish_display_data

        update, self.visible = self.visible, True
        publish_display_data(data, metadata or {}, transient={"display_id": self._id}, update=update)


def shell() -> Any:
    """The notebook's shell; None in a terminal, a script, or plain IPython."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    found = get_ipython()
    return found if found is not None and getattr(found, "kernel", None) is not None else None


def after_each_cell(call: Callable[[], bool]) -> Callable[[], None]:
    """Call something after each cell, in that cell's name, until it gives True.

    Returns:
        a function that ends it earlier.
    """
    here = shell()
    if here is None:
        return lambda: None
    state = {"on": True}

    def stop() -> None:
        if state["on"]:
            state["on"] = False
            here.events.unregister("post_run_cell", after)

    def after(result: Any = None) -> None:
        if call():
            stop()

    here.events.register("post_run_cell", after)
    return stop
