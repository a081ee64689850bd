"""The append-only record: on disk before it is shown, whole lines only, nothing lost when the disk is full."""

import errno
import json
import math
import os
import resource
import threading

import numpy as np
import pytest

from cnnkit.record.rows import Record, read_rows


def epoch(number, **more):
    return {"kind": "epoch", "epoch": number, **more}


def rounds(number, count, **more):
    return {"kind": "rounds", "round": number, "rounds": count, **more}


@pytest.fixture
def full():
    """A file-size limit in place of a full disk: the same error from the kernel, also after part of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_row_is_on_disk_before_it_is_shown(tmp_path):
    record, seen = Record(tmp_path), []
    record._rows = Spy(lambda: seen.append((tmp_path / "record.jsonl").read_text()))
    record.append(epoch(1, test_accuracy=0.5))
    assert seen == ['{"kind": "epoch", "epoch": 1, "test_accuracy": 0.5}\n']


class Spy(list):
    def __init__(self, tell):
        self.tell = tell

    def __iadd__(self, rows):
        self.tell()
        return super().__iadd__(rows)


def test_rows_come_back_as_they_were_also_numpy_ones(tmp_path):
    record = Record(tmp_path)
    record.append(
        epoch(np.int32(1), loss=np.float32(0.25), busy=np.array([1.0, 0.5]), why=None, parts=(1, 2))
    )
    record.append(epoch(2, loss=math.inf))
    assert list(read_rows(tmp_path / "record.jsonl")) == record.rows == Record(tmp_path).rows
    assert record.rows[0] == epoch(1, loss=0.25, busy=[1.0, 0.5], why=None, parts=[1, 2])
    assert record.column("loss") == [0.25, math.inf]
    assert math.isnan(record.column("test_loss")[0])
    assert len(record) == 2


def test_without_a_folder_or_the_right_to_write_rows_are_in_memory_alone(tmp_path):
    for record in (Record(), Record(tmp_path, writes=False)):
        record.append(epoch(1))
        assert record.epochs() == [epoch(1)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "torn", [b'{"kind": "epoch", "ep', b'{"kind": "epoch", "epoch": 3', b"\xff\xfe\x00", b"[1]\n7\nnull\n\n"]
)
def test_a_torn_line_is_passed_over_and_the_next_row_begins_a_line(tmp_path, torn):
    path = tmp_path / "record.jsonl"
    Record(tmp_path).append(epoch(1))
    with path.open("ab") as file:
        file.write(torn)
    record = Record(tmp_path)
    assert record.rows == [epoch(1)]
    record.append(epoch(2))
    assert Record(tmp_path).rows == [epoch(1), epoch(2)]
    assert path.read_bytes().endswith(b"\n")


def test_a_full_disk_loses_nothing(tmp_path, full):
    path, record = tmp_path / "record.jsonl", Record(tmp_path)
    record.append(epoch(1))
    size = path.stat().st_size
    full(size + 10)
    message = r"the record .*record\.jsonl cannot be written \(File too large\); free space or make the folder writable, then call fit\(\) again: nothing that was recorded before is lost"
    for number in (2, 3):
        with pytest.raises(OSError, match=message) as caught:
            record.append(epoch(number))
        assert caught.value.errno == errno.EFBIG
        assert path.stat().st_size == size
    assert record.epochs() == [epoch(1), epoch(2), epoch(3)]
    with pytest.raises(OSError, match="cannot be written"):
        record.flush()
    full(10**9)
    record.flush()
    assert Record(tmp_path).rows == [epoch(1), epoch(2), epoch(3)]
    record.append(epoch(4))
    record.flush()
    assert [row["epoch"] for row in Record(tmp_path).rows] == [1, 2, 3, 4]


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"the record .* cannot be written \(Not a directory\)"):
        Record(tmp_path / "file" / "run").append(epoch(1))


def test_an_epoch_gone_through_again_replaces_itself_and_those_after():
    record = Record()
    record.append(epoch(1, a=1), epoch(2, a=1), epoch(3, a=1), {"kind": "event", "event": "x"}, epoch(2, a=2))
    assert record.epochs() == [epoch(1, a=1), epoch(2, a=2)]
    record.append(epoch(3, a=2))
    assert record.column("a") == [1, 2, 2]
    assert len(record) == 6


def test_rounds_gone_through_again_replace_all_that_they_overlap():
    record = Record()
    record.append(rounds(5, 5), rounds(10, 5), rounds(15, 5))
    # Resumed at round 10, the next dispatch is longer than the one that it repeats.
    record.append(rounds(18, 8, again=True))
    assert [row["round"] for row in record.rounds()] == [5, 10, 18]
    record.append(rounds(3, 3))
    assert record.rounds() == [rounds(3, 3)]


def test_a_hundred_thousand_rounds_are_read_in_no_time():
    record = Record()
    record.append(*(rounds(i + 1, 1) for i in range(100_000)))
    assert len(record.rounds()) == 100_000


def test_threads_write_whole_lines(tmp_path):
    record = Record(tmp_path)
    threads = [
        threading.Thread(
            target=lambda k=k: [record.append({"kind": "event", "k": k, "i": i}) for i in range(20)]
        )
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "record.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == record.rows
    assert sorted((row["k"], row["i"]) for row in record.rows) == [
        (k, i) for k in range(4) for i in range(20)
    ]


def test_another_reader_sees_rows_as_they_come(tmp_path):
    record = Record(tmp_path)
    for number in range(3):
        record.append(epoch(number))
        assert len(Record(tmp_path)) == number + 1
    assert os.listdir(tmp_path) == ["record.jsonl"]
