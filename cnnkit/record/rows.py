"""The append-only record: one JSON object a line, on disk before anybody sees it."""

import json
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Record:
    """Rows of a run, in memory and, given a folder, in ``record.jsonl``.

    A row is a flat dictionary with a ``kind``: ``"epoch"``, ``"rounds"`` or ``"event"``. Rows are only
    ever appended; where an interrupted run repeats an epoch, the later row stands for it.

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
        self._lock = threading.Lock()

    def append(self, row: Row) -> None:
        """Write one row to disk, then show it to readers.

        Raises:
            OSError: the file cannot be written; the row is kept in memory and the text says what to do.
        """
        row = {key: _plain(value) for key, value in row.items()}
        with self._lock:
            try:
                if self.path is not None and self.writes:
                    _append_line(self.path, json.dumps(row, allow_nan=True))
            except OSError as error:
                raise type(error)(
                    error.errno,
                    f"the record {self.path} cannot be written ({error.strerror}); free space or make the folder "
                    "writable, then call fit() again: nothing that was recorded before is lost",
                ) from error
            finally:
                self._rows.append(row)

    @property
    def rows(self) -> list[Row]:
        """A copy of all rows, oldest first."""
        with self._lock:
            return list(self._rows)

    def epochs(self) -> list[Row]:
        """The rows of finished epochs, in order, each epoch once."""
        return sorted(_last_by_epoch(self.rows).values(), key=lambda row: row["epoch"])

    def rounds(self) -> list[Row]:
        """The rows of rounds, in order, without those that a resumed run repeated."""
        last: dict[int, Row] = {}
        for row in self.rows:
            if row.get("kind") == "rounds":
                for later in [r for r in last if r >= row["round"]]:
                    del last[later]
                last[row["round"]] = row
        return [last[r] for r in sorted(last)]

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


def _last_by_epoch(rows: list[Row]) -> dict[int, Row]:
    return {row["epoch"]: row for row in rows if row.get("kind") == "epoch"}


def _append_line(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() and _last_byte(file) != b"\n":
            file.write(b"\n")
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


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
