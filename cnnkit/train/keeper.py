"""A run's folder as the training sees it: met with care, locked, written, gone on from."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cnnkit
from cnnkit.record import checkpoint
from cnnkit.record.folder import Lock, check_writable, read_config, write_config
from cnnkit.record.rows import Record
from cnnkit.train import settings


class Keeper:
    """What a run keeps on disk, or nowhere.

    Args:
        folder: the run's folder, or None.
        config: the run's settings.
        every: seconds between two checkpoints.
        writes: whether this process is the one that writes.

    Raises:
        ValueError: the folder holds another run; the text names each difference.
    """

    def __init__(self, folder: Path | None, config: dict[str, Any], every: float, writes: bool = True) -> None:
        self.folder, self.config, self.every, self.writes = folder, config, every, writes
        self._saved_at = time.monotonic()
        if folder is not None and (then := read_config(folder)) is not None:
            if found := settings.differences(then, config):
                raise ValueError(
                    f"{folder} holds another run: {'; '.join(found)}. Give the same settings to go on with it, "
                    "read it with Run.load(), or use another folder="
                )
        self.record = Record(folder, writes=writes)

    def facts(self) -> dict[str, Any] | None:
        """Of the last checkpoint, None where there is none."""
        return checkpoint.read_facts(self.folder) if self.folder is not None else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against other runs, its settings written."""
        if self.folder is None or not self.writes:
            yield
            return
        check_writable(self.folder)
        with Lock(self.folder):
            write_config(self.folder, self.config)
            yield

    @property
    def due(self) -> bool:
        """Whether the next checkpoint's time has come."""
        return self.folder is not None and time.monotonic() - self._saved_at >= self.every

    def write(self, tree: Any, facts: dict[str, Any], folder: Path | None = None) -> Path | None:
        """A checkpoint into the run's folder, or into another."""
        target = folder or self.folder
        self._saved_at = time.monotonic()
        if target is None or not self.writes:
            return None
        return checkpoint.write(target, tree, {"cnnkit": cnnkit.__version__, **facts})

    def read(self, like: Any) -> tuple[Any, dict[str, Any]]:
        """The last checkpoint's tree and facts."""
        assert self.folder is not None
        return checkpoint.read(self.folder, like)

    def copy(self, folder: Path, tree: Any, facts: dict[str, Any]) -> Path:
        """The whole run as it stands, into another folder.

        Raises:
            ValueError: that folder holds another run.
        """
        other = Keeper(folder, self.config, self.every)
        with other.locked():
            for row in self.record.rows[len(other.record) :]:
                other.record.append(row)
            other.write(tree, facts)
        return folder
