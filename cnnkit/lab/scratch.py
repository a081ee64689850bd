"""Temporary folders that the next start removes if their owner was killed."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is swept
    fcntl = None  # type: ignore[assignment]

PREFIX = "cnnkit-lab-"


@contextlib.contextmanager
def folder(given: str | Path | None = None) -> Iterator[Path]:
    """The given folder, made and kept; or a temporary one, removed afterwards.

    A temporary folder is locked as long as its owner lives, so a folder without a lock was left by one that
    was killed; those are removed here.
    """
    if given is not None:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given)
        return
    if fcntl is None:
        with tempfile.TemporaryDirectory(prefix=PREFIX) as made:
            yield Path(made)
        return
    _sweep()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _sweep() -> None:
    for left in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def _make() -> tuple[Path, int]:
    """A new folder and its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Another's start may sweep it away before it is locked.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)
