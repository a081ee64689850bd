"""A run's folder: its settings, its lock, and files that are replaced whole or not at all."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cnnkit.record.rows import Record

CHECKPOINT = "checkpoint.safetensors"


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file in one step: readers see the old bytes or the new ones, also after a crash.

    Raises:
        OSError: read-only or full; the old file is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def check_writable(folder: str | os.PathLike[str]) -> Path:
    """Make the folder if need be and prove that a file can be written there, before any work is done.

    Raises:
        OSError: it cannot; the text names the folder and what to do.
    """
    folder = Path(folder)
    with _telling(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Not empty, as a full disk still takes files of no size.
        write_whole(folder / ".writable", bytes(4096))
        (folder / ".writable").unlink()
    return folder


def write_config(folder: str | os.PathLike[str], config: dict[str, Any]) -> None:
    """Keep a run's settings as ``config.json`` beside its results.

    Raises:
        OSError: as `check_writable`.
    """
    with _telling(Path(folder)):
        write_whole(Path(folder) / "config.json", (json.dumps(config, indent=1) + "\n").encode())


@contextlib.contextmanager
def _telling(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"the run's folder {folder} cannot be written ({error.strerror}); free space, change its "
            "permissions, or give another folder=",
        ) from error


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The settings of the run that a folder holds, None where it holds none.

    A run that left neither a checkpoint nor a finished epoch holds its folder no more: another may begin in it.

    Raises:
        ValueError: the settings are damaged.
    """
    config = settings_in(folder)
    left = (Path(folder) / CHECKPOINT).exists() or Record(folder, writes=False).epochs()
    return config if left else None


def settings_in(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What ``config.json`` in a folder says, None where there is none.

    Raises:
        ValueError: the file is damaged.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text
        raise ValueError(_damaged(path, error)) from error
    if not isinstance(config, dict):
        raise ValueError(_damaged(path, "it holds no settings"))
    return config


def _damaged(path: Path, why: object) -> str:
    return f"{path} is damaged ({why}); restore it, or give the run another folder="


class Lock:
    """One run at a time in a folder; the lock goes with its process, also after ``kill -9``."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock = FileLock(self.folder / ".lock")

    def __enter__(self) -> "Lock":
        """Take it.

        Raises:
            RuntimeError: another run writes in this folder.
            OSError: the folder cannot be written.
        """
        with _telling(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:  # an OSError, but no fault of the disk
                raise RuntimeError(self._in_use()) from None
        with contextlib.suppress(OSError):  # a full disk is for whoever writes what matters
            (self.folder / ".owner").write_text(f"{os.getpid()}\n")
        for part in self.folder.glob(".*.part"):  # left by a process that was killed while it wrote
            part.unlink(missing_ok=True)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            (self.folder / ".owner").unlink(missing_ok=True)
        self._lock.release()

    def _in_use(self) -> str:
        owner = self.folder / ".owner"
        who = f" (process {owner.read_text().strip()})" if owner.exists() else ""
        return (
            f"the folder {self.folder} is in use by another run{who}; wait for it, stop it, "
            "or give this run another folder="
        )
