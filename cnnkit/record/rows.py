"""The append-only record: one JSON object a line, on disk before anybody sees it."""

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Record:
    """Rows of a run, in memory and, given a folder, in ``record.jsonl``.

    A row is a flat dictionary with a ``kind``: ``"epoch"``, ``"rounds"`` or ``"event"``. Rows are only
    ever appended; where a resumed run goes through an epoch again, its later row stands, and those after
    it count no more until they come again.

    Args:
        folder: where ``record.jsonl`` lies; None keeps the rows in memory alone.
        writes: False reads what is there and writes nothing: for all processes of a job but one.

    >>> record = Record()
    >>> record.append({"kind": "epoch", "epoch": 1, "test_accuracy": 0.97})
    >>> record.column("test_accuracy")
    [0.97]
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, writes: bool = True) -> None:
        self.writes = writes
        self.path = None if folder is None else Path(folder) / "record.jsonl"
        self._rows: list[Row] = list(read_rows(self.path)) if self.path else []
        self._waiting: list[str] = []
        self._lock = threading.Lock()

    def append(self, *rows: Row) -> None:
        """Write rows to disk, then show them to readers.

        Raises:
            OSError: the file cannot be written; the rows are kept in memory and go to disk with the next one,
                or by `flush`.
        """
        plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
        with self._lock:
            if self.path is not None and self.writes:
                self._waiting += map(json.dumps, plain)
            try:
                self._write()
            finally:
                self._rows += plain

    def flush(self) -> None:
        """Write what could not be written when it came; nothing, mostly.

        Raises:
            OSError: it still cannot be written.
        """
        with self._lock:
            self._write()

    def _write(self) -> None:
        if self.path is None or not self._waiting:
            return
        try:
            _append_lines(self.path, self._waiting)
        except OSError as error:
            raise OSError(
                error.errno,
                f"the record {self.path} cannot be written ({error.strerror}); free space or make the folder "
                "writable, then call fit() again: nothing that was recorded before is lost",
            ) from error
        self._waiting.clear()

    @property
    def rows(self) -> list[Row]:
        """A copy of all rows, oldest first."""
        with self._lock:
            return list(self._rows)

    def epochs(self) -> list[Row]:
        """The rows of finished epochs, in order, each epoch once."""
        return _standing(self.rows, "epoch", "epoch", lambda row: row["epoch"] - 1)

    def rounds(self) -> list[Row]:
        """The rows of rounds, in order, without those that a resumed run went through again."""
        return _standing(self.rows, "rounds", "round", lambda row: row["round"] - row.get("rounds", 1))

    def column(self, name: str) -> list[Any]:
        """One value an epoch; nan where an epoch's row has none."""
        return [row.get(name, math.nan) for row in self.epochs()]

    def __len__(self) -> int:
        return len(self._rows)


def read_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    """The whole rows of a record file; a line torn by a crash is passed over.

    Args:
        path: ``record.jsonl``; a missing file has no rows.
    """
    path = Path(path)
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict):
                yield row


def _standing(rows: list[Row], kind: str, number: str, begin: Callable[[Row], int]) -> list[Row]:
    """Rows of a kind, each going on where the one before it ended; one that begins earlier replaces those after."""
    standing: list[Row] = []
    for row in rows:
        if row.get("kind") == kind and number in row:
            while standing and standing[-1][number] > begin(row):
                standing.pop()
            standing.append(row)
    return standing


def _append_lines(path: Path, lines: Sequence[str]) -> None:
    """All of the lines, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered, or what a full disk refused would be written after all when the file is closed.
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and _last_byte(file) != b"\n"
        left = b"\n" * torn + "".join(f"{line}\n" for line in lines).encode()
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def _plain(value: Any) -> Any:
    """Numbers and arrays of any library as what JSON holds."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
