"""A run's folder: settings, lock, files replaced whole."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from cnnkit.record import checkpoint, folder
from cnnkit.record.folder import Lock, check_writable, read_config, settings_in, write_config, write_whole
from cnnkit.record.rows import Record


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file"
    write_whole(path, b"old")
    for name in ("fsync", "replace"):

        def fail(*args):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(folder.os, name, fail)
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, b"new and longer")
        monkeypatch.undo()
        assert path.read_bytes() == b"old"
        assert os.listdir(path.parent) == ["file"]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_colleagues_can_read_what_is_written(tmp_path):
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_settings_come_back(tmp_path):
    assert settings_in(tmp_path) is None
    write_config(tmp_path / "run", {"batch": 8, "net": {"kind": "serial"}})
    assert settings_in(tmp_path / "run") == {"batch": 8, "net": {"kind": "serial"}}


def test_a_folder_is_held_by_a_run_of_which_something_is_left(tmp_path):
    settings = {"batch": 8}
    write_config(tmp_path, settings)
    Record(tmp_path).append({"kind": "event", "event": "diverged"})
    assert read_config(tmp_path) is None
    (tmp_path / checkpoint.NAME).write_bytes(b"even if damaged")
    assert read_config(tmp_path) == settings
    (tmp_path / checkpoint.NAME).unlink()
    Record(tmp_path).append({"kind": "epoch", "epoch": 1})
    assert read_config(tmp_path) == settings


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe\xfa", b"[1, 2]", b"null"])
def test_damaged_settings_say_what_to_do(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"config\.json is damaged \(.*\); restore it, or give the run another folder="
    ):
        read_config(tmp_path)


def test_a_folder_that_cannot_be_written_is_known_before_any_work(tmp_path, monkeypatch):
    assert check_writable(tmp_path / "new" / "run").is_dir()
    assert not list((tmp_path / "new" / "run").iterdir())
    (tmp_path / "file").write_text("")
    message = r"the run's folder .* cannot be written \(.*\); free space, change its permissions, or give another folder="
    for act in (check_writable, lambda f: write_config(f, {}), lambda f: Lock(f).__enter__()):
        with pytest.raises((NotADirectoryError, FileExistsError), match=message):
            act(tmp_path / "file" / "run")
    read_only = lambda *a, **k: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr("pathlib.Path.open", read_only)
    with pytest.raises(OSError, match=message) as caught:
        check_writable(tmp_path)
    assert caught.value.errno == errno.EROFS


def test_a_full_disk_is_known_although_empty_files_fit(tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match=r"cannot be written \(File too large\)"):
            check_writable(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_one_run_at_a_time_in_a_folder(tmp_path):
    message = rf"the folder .* is in use by another run \(process {os.getpid()}\); wait for it, stop it, or give this run another folder="
    with Lock(tmp_path), pytest.raises(RuntimeError, match=message), Lock(tmp_path):
        pass
    with Lock(tmp_path):
        pass


def test_the_lock_goes_with_its_process(tmp_path):
    code = f"""
import sys, time
sys.path.insert(0, {str(os.getcwd())!r})
from cnnkit.record.folder import Lock
held = Lock({str(tmp_path)!r}).__enter__()
print("held", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with (
                pytest.raises(RuntimeError, match=rf"in use by another run \(process {other.pid}\)"),
                Lock(tmp_path),
            ):
                pass
        finally:
            other.kill()
            other.wait()
    (tmp_path / ".checkpoint.safetensors.1.2.part").write_bytes(b"left by the dead")
    with Lock(tmp_path):
        assert not list(tmp_path.glob("*part*"))
