"""A run's folder: its settings, its lock, and files that are replaced whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file in one step: readers see the old bytes or the new ones, also after a crash.

    Raises:
        OSError: read-only or full; the old file is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_writable(folder: str | os.PathLike[str]) -> Path:
    """Make the folder if need be and prove that a file can be written there, before any work is done.

    Raises:
        OSError: it cannot; the text names the folder and what to do.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ".writable", b"")
        (folder / ".writable").unlink()
    except OSError as error:
        raise type(error)(
            error.errno,
            f"the run's folder {folder} cannot be written ({error.strerror}); free space, change its "
            "permissions, or give another folder=",
        ) from error
    return folder


def write_config(folder: str | os.PathLike[str], config: dict[str, Any]) -> None:
    """Keep a run's settings as ``config.json`` beside its results."""
    write_whole(Path(folder) / "config.json", (json.dumps(config, indent=1) + "\n").encode())


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The settings in a run's folder, None where there are none.

    Raises:
        ValueError: the file is damaged.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is damaged ({error}); restore it, or give the run another folder="
        ) from error


class Lock:
    """One run at a time in a folder; the lock goes with its process, also after ``kill -9``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock = FileLock(self.folder / ".lock")

    def __enter__(self) -> "Lock":
        """Take it.

        Raises:
            RuntimeError: another run writes in this folder.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            owner = self.folder / ".owner"
            who = f" (process {owner.read_text().strip()})" if owner.exists() else ""
            raise RuntimeError(
                f"the folder {self.folder} is in use by another run{who}; wait for it, stop it, "
                "or give this run another folder="
            ) from None
        (self.folder / ".owner").write_text(f"{os.getpid()}\n")
        return self

    def __exit__(self, *exc: object) -> None:
        (self.folder / ".owner").unlink(missing_ok=True)
        self._lock.release()
