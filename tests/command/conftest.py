"""What the tests of the command line share: a folder to work in."""

import pytest

NET = "import cnnkit as ck\n\ndef net(classes):\n    return ck.serial(ck.dense(16), ck.relu(), ck.dense(classes))\n"
NET += "\ndef none(): ...\n\ndef forgets(classes): ...\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a small network in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(NET)
    return tmp_path
