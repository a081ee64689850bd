"""The notebook's tests find what stands for NVML beside them, and a frontend that keeps what it is told."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))


class Frontend:
    """A notebook's shell: keeps every message about outputs, and the cells' events."""

    def __init__(self):
        self.kernel = object()
        self.messages, self.callbacks = [], []
        self.events = SimpleNamespace(
            register=lambda event, call: self.callbacks.append(call),
            unregister=lambda event, call: self.callbacks.remove(call),
        )

    def publish(self, data, metadata=None, *, transient=None, update=False):
        self.messages.append(
            SimpleNamespace(data=data, metadata=metadata, id=transient["display_id"], update=update)
        )

    def outputs(self):
        """What a saved notebook would hold: the last state of each display."""
        assert [m.id for m in self.messages if not m.update] == list(
            dict.fromkeys(m.id for m in self.messages)
        )
        return {m.id: m for m in self.messages}

    def cell_ends(self):
        for call in list(self.callbacks):
            call(None)


@pytest.fixture
def frontend(monkeypatch):
    made = Frontend()
    monkeypatch.setattr("cnnkit.notebook.shown.shell", lambda: made)
    monkeypatch.setattr("cnnkit.notebook.watch.shell", lambda: made)
    monkeypatch.setattr("cnnkit.notebook.devices.shell", lambda: made)
    monkeypatch.setattr("IPython.display.publish_display_data", made.publish)
    return made


def stub(rows=(), **changes):
    made = SimpleNamespace(
        data=SimpleNamespace(name="digits"),
        folder=None,
        epochs=10,
        batch=20,
        phase="train",
        epochs_done=0.0,
        examples_seen=0,
        recent_loss=float("nan"),
        clocks=SimpleNamespace(seconds={"train": 0.0, "evaluate": 0.0, "compile": 0.0}),
        record=SimpleNamespace(rows=list(rows)),
    )
    return SimpleNamespace(**(vars(made) | changes))
