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

    def __init__(
        self, folder: Path | None, config: dict[str, Any], every: float, writes: bool = True
    ) -> None:
        self.folder, self.config, self.every = folder, config, every
        self._saved_at = time.monotonic()
        then = None if folder is None else read_config(folder)
        if then is not None and (found := settings.differences(then, config)):
            raise ValueError(
                f"{folder} holds another run: {'; '.join(found)}. Give the same settings to go on with it, "
                "read it with Run.load(), or use another folder="
            )
        self.record = Record(folder)
        self.writes = writes
        self._known = self._mark()

    def facts(self) -> dict[str, Any] | None:
        """Of the last checkpoint, None where there is none."""
        return checkpoint.read_facts(self.folder) if self.folder is not None else None

    def content(self) -> bytes | None:
        """The last checkpoint as it lies in the folder, None where there is none."""
        return checkpoint.read_bytes(self.folder) if self.folder is not None else None

    def facts_in(self, content: bytes) -> dict[str, Any]:
        """What a checkpoint says of itself."""
        return checkpoint.facts_in(content, self._path)

    def tree_in(self, content: bytes, like: Any) -> Any:
        """The arrays of a checkpoint, shaped as they must be."""
        return checkpoint.tree_in(content, like, self._path)

    @property
    def _path(self) -> Path:
        return (self.folder or Path()) / checkpoint.NAME

    def _mark(self) -> tuple[int, ...] | None:
        """What tells the checkpoint that lies there from any other, None where there is none."""
        try:
            found = self._path.stat() if self.folder is not None else None
        except OSError:
            return None
        return found and (found.st_ino, found.st_mtime_ns, found.st_size)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against other runs, its settings written.

        Raises:
            RuntimeError: another run wrote a checkpoint there since this one was made or last wrote its own.
        """
        if self.folder is None or not self.writes:
            yield
            return
        with Lock(self.folder):
            if (there := self._mark()) is not None and there != self._known:
                raise RuntimeError(
                    f"another run has trained in {self.folder} since this one last stood there, and would be lost: make "
                    "the run anew with the same settings, or read it by Run.load(), to go on from where that one ended"
                )
            check_writable(self.folder)
            write_config(self.folder, self.config)
            self.record.flush()
            yield

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        return self.record.writes

    @writes.setter
    def writes(self, whether: bool) -> None:
        self.record.writes = whether

    @property
    def due(self) -> bool:
        """Whether the next checkpoint's time has come."""
        return self.folder is not None and time.monotonic() - self._saved_at >= self.every

    def write(self, tree: Any, facts: dict[str, Any]) -> None:
        """A checkpoint into the run's folder."""
        self._saved_at = time.monotonic()
        if self.folder is not None and self.writes:
            checkpoint.write(self.folder, tree, {"cnnkit": cnnkit.__version__, **facts})
            self._known = self._mark()

    def copy(self, folder: Path, tree: Any, facts: dict[str, Any]) -> Path:
        """The whole run as it stands, into another folder.

        Raises:
            ValueError: that folder holds another run.
        """
        other = Keeper(folder, self.config, self.every, self.writes)
        with other.locked():
            other.record.append(*self.record.rows[len(other.record) :])
            other.write(tree, facts)
        return folder
