"""Where files are looked for, and where they are served."""

import pooch
import pytest

from cnnkit.data import files
from tests.data.served import Web


@pytest.fixture
def web():
    served = Web()
    yield served
    served.server.shutdown()
    served.server.server_close()


@pytest.fixture
def places(tmp_path, monkeypatch):
    """No place of this machine is looked at but those below tmp_path."""
    monkeypatch.delenv("CNNKIT_DATA", raising=False)
    monkeypatch.setattr(files, "PROJECT", tmp_path / "project")
    monkeypatch.setattr(files, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path
