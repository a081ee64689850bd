import threading
import time

import numpy as np
import pytest
from PIL import Image

from cnnkit.data.order import batches
from cnnkit.data.readers import ArrayReader, FolderReader
from cnnkit.data.stream import ReadError, Stream
from cnnkit.graph import OperationError

N = 23


def pixels(n: int = N, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 4, 5, 3), np.uint8)


def reader(n: int = N) -> ArrayReader:
    return ArrayReader(pixels(n), np.arange(n) % 4)


class Slow(ArrayReader):
    """An array whose reading can be held up, and that counts what it read."""

    def __init__(self, n: int = N, pause: float = 0.0):
        super().__init__(pixels(n), np.arange(n) % 4)
        self.pause, self.seen, self.gate = pause, 0, threading.Event()
        self.gate.set()

    def read(self, i):
        self.gate.wait(20)
        time.sleep(self.pause)
        self.seen += 1
        return super().read(i)


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_every_example_once_in_the_order_of_the_epoch(preload, asynchronous):
    index, weight = batches(N, 4, seed=5, epoch=3)
    with Stream(reader(), 4, seed=5, threads=3, preload=preload, asynchronous=asynchronous) as stream:
        made = list(stream.epoch(3))
    assert [b.number for b in made] == list(range(6))
    assert {b.epoch for b in made} == {3}
    for batch, i, w in zip(made, index, weight):
        real = w > 0
        np.testing.assert_array_equal(batch.examples, i)
        np.testing.assert_array_equal(batch.weight, w)
        np.testing.assert_array_equal(np.asarray(batch.images)[real], pixels()[i[real]])
        np.testing.assert_array_equal(np.asarray(batch.labels)[real], i[real] % 4)
    assert stream.report.batches == 6


def test_resuming_at_any_batch_gives_the_rest():
    def halves(rng, images):
        return (images // 2 + rng.integers(0, 100, images.shape, np.uint8)).astype(np.uint8)

    with Stream(reader(), 4, seed=1, threads=2, prepare=halves) as stream:
        whole = list(stream.epoch(2))
        for start in (0, 1, 5, 6):
            rest = list(stream.epoch(2, start))
            assert [b.number for b in rest] == list(range(start, 6))
            for a, b in zip(rest, whole[start:]):
                np.testing.assert_array_equal(a.images, b.images)
        first, again = list(stream.epoch(0)), next(stream.epoch(1))
        assert not np.array_equal(first[0].images, again.images)
        with pytest.raises(ValueError, match="start must be from 0 to the epoch's 6 batches, got 7"):
            stream.epoch(0, 7)


def test_memory_stays_bounded_when_the_reader_is_faster():
    fast = Slow(200)
    with Stream(fast, 4, threads=2, depth=3, ahead=2) as stream:
        for taken, _ in enumerate(stream.epoch(0), 1):
            time.sleep(2e-3)
            assert fast.seen <= 4 * (taken + 3)
        assert fast.seen == 200
    assert stream.bound() == (3 * 4 * 60, 3 * 4 * 60)


def test_without_preload_nothing_is_read_before_it_is_asked_for():
    source = Slow(40)
    with Stream(source, 4, threads=2, preload=False) as stream:
        for taken, _ in enumerate(stream.epoch(0), 1):
            time.sleep(1e-3)
            assert source.seen == 4 * taken


def test_preload_hides_reading_and_the_report_says_so():
    """The consumer's work on one batch ends only when the next has been read: waiting would never end."""
    source = Slow(32)
    with Stream(source, 4, threads=2, depth=2) as stream:
        for taken, _ in enumerate(stream.epoch(0), 1):
            while source.seen < min(32, 4 * (taken + 1)):
                time.sleep(1e-4)
        assert stream.report.batches == 8
        assert 0 <= stream.report.waiting_fraction < 1
        assert {e.op for e in stream.timeline} >= {"read 0", "decode 1", "gather", "copy"}


def test_the_waiting_fraction_counts_the_waits():
    slow = Slow(32, pause=2e-3)
    with Stream(slow, 4, threads=1, preload=False) as stream:
        for _ in stream.epoch(0):
            pass
        assert stream.report.waiting_fraction > 0.9
        assert stream.report.filling > 8e-3
        assert stream.report.seconds >= stream.report.waited > 7 * 8e-3


def jpegs(root, n=6, size=(40, 60)):
    for i in range(n):
        folder = root / ("cat" if i % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        ramp = np.linspace(20 * i, 20 * i + 60, size[0] * size[1]).reshape(size).astype(np.uint8)
        Image.fromarray(np.stack([ramp, 255 - ramp, ramp // 2], -1)).save(folder / f"{i}.jpg", quality=95)
    return root


def test_a_folder_of_jpegs(tmp_path):
    folder = FolderReader(jpegs(tmp_path), size=16, short=20)
    assert (len(folder), folder.shape, folder.classes) == (6, (16, 16, 3), ("cat", "dog"))
    with Stream(folder, 6, threads=2) as stream:
        (batch,) = list(stream.epoch(0))
    for image, label, i in zip(batch.images, batch.labels, batch.examples):
        path = folder.name(int(i))
        assert folder.classes[int(label)] in path
        with Image.open(path) as opened:
            plain = opened.convert("RGB").resize((30, 20), Image.Resampling.BILINEAR).crop((7, 2, 23, 18))
        assert np.abs(np.asarray(image, int) - np.asarray(plain, int)).mean() < 3


def test_a_large_jpeg_is_decoded_no_larger_than_needed_and_looks_the_same(tmp_path):
    jpegs(tmp_path, 2, (480, 640))
    folder = FolderReader(tmp_path, size=32)
    into = np.zeros((32, 32, 3), np.uint8)
    folder.decode(folder.read(0), into)
    with Image.open(folder.name(0)) as opened:
        side = 480 * 224 / 256
        box = ((640 - side) / 2, (480 - side) / 2, (640 + side) / 2, (480 + side) / 2)
        plain = np.asarray(opened.convert("RGB").resize((32, 32), Image.Resampling.BOX, box=box), int)
    assert np.abs(plain - into).mean() < 3


def test_a_turned_photograph_and_grey_ones(tmp_path):
    jpegs(tmp_path, 2)
    exif = Image.Exif()
    exif[0x0112] = 6
    ramp = np.tile(np.arange(0, 240, 4, np.uint8), (40, 1))
    Image.fromarray(ramp).save(tmp_path / "cat" / "0.jpg", exif=exif, quality=95)
    folder = FolderReader(tmp_path, size=16, short=16)
    into = np.zeros((16, 16, 3), np.uint8)
    folder.decode(folder.read(0), into)
    assert into[-1].mean() > into[0].mean() + 50
    assert np.ptp(into.mean(axis=(0, 2))) < 3


def test_a_corrupted_image_is_named(tmp_path):
    jpegs(tmp_path)
    bad = tmp_path / "cat" / "3.jpg"
    bad.write_bytes(bad.read_bytes()[:150])
    with Stream(FolderReader(tmp_path, 16), 3, threads=2) as stream:
        with pytest.raises(ReadError) as error:
            list(stream.epoch(0))
        text = str(error.value)
        assert text.startswith(f"{bad} (example 1, epoch 0, batch ")
        assert "cannot be decoded: " in text
        assert text.endswith("repair or remove it, or leave it out with on_error='skip'")
        assert error.value.__cause__ is not None


def test_a_vanished_file_is_named_or_skipped_and_counted(tmp_path):
    folder = FolderReader(jpegs(tmp_path), 16)
    gone = tmp_path / "dog" / "2.jpg"
    gone.unlink()
    with (
        Stream(folder, 3, threads=2) as stream,
        pytest.raises(ReadError, match="cannot be read: FileNotFoundError"),
    ):
        list(stream.epoch(0))
    with Stream(folder, 3, threads=2, on_error="skip") as stream:
        made = list(stream.epoch(0))
        (skipped,) = stream.report.skipped
    assert skipped[:2] == (4, str(gone))
    assert "FileNotFoundError" in skipped[2]
    for batch in made:
        missing = batch.examples == 4
        np.testing.assert_array_equal(np.asarray(batch.weight), ~missing)
        assert not np.asarray(batch.images)[missing].any()


def test_a_batch_of_which_nothing_can_be_read_is_an_error_also_when_skipping(tmp_path):
    folder = FolderReader(jpegs(tmp_path), 16)
    for file in list(tmp_path.rglob("*.jpg")):
        file.unlink()
    with (
        Stream(folder, 3, threads=2, on_error="skip") as stream,
        pytest.raises(ReadError, match="none of the 3 examples of batch 0 of epoch 0 can be read"),
    ):
        list(stream.epoch(0))


class Dies(ArrayReader):
    def read(self, i):
        raise SystemExit("the reader left")


def test_a_reader_that_dies_is_an_error_not_a_hang():
    with (
        Stream(Dies(pixels(), np.arange(N) % 4), 4, threads=2, on_error="skip") as stream,
        pytest.raises(
            OperationError, match=r"stream: operation 'read \d' .* failed: SystemExit: the reader left"
        ),
    ):
        list(stream.epoch(0))


def test_a_reader_that_hangs_times_out_by_name():
    stuck = Slow()
    stuck.gate.clear()
    with Stream(stuck, 4, threads=2, timeout=0.5) as stream:
        with pytest.raises(TimeoutError, match=r"item 0 not done within 0.5 s: running 'read \d' on cpu:1"):
            list(stream.epoch(0))
        stuck.gate.set()


def test_an_epoch_left_early_and_the_next():
    with Stream(reader(), 4, seed=1, threads=2) as stream:
        left = stream.epoch(0)
        next(left)
        assert len(list(stream.epoch(1))) == 6
        assert list(left) == []
    assert [t for t in threading.enumerate() if t.name.startswith("cnnkit stream")] == []


def test_an_error_in_prepare_names_the_operation():
    def prepare(rng, images):
        raise ZeroDivisionError("scale 0")

    with (
        Stream(reader(), 4, prepare=prepare) as stream,
        pytest.raises(
            OperationError, match=r"operation 'gather' \(item 0, on cpu\) failed: ZeroDivisionError: scale"
        ),
    ):
        list(stream.epoch(0))


def test_a_memory_mapped_array(tmp_path):
    np.save(tmp_path / "images.npy", pixels())
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    source = ArrayReader(mapped, np.arange(N) % 2, classes=("even", "odd"))
    assert source.name(3) == f"image 3 of {tmp_path / 'images.npy'}"
    with Stream(source, N, threads=2) as stream:
        (batch,) = list(stream.epoch(0))
    np.testing.assert_array_equal(batch.images, pixels()[batch.examples])


def test_wrong_settings(tmp_path):
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Stream(reader(), 4, depth=0)
    with pytest.raises(ValueError, match="unknown on_error 'skipp': did you mean 'skip'"):
        Stream(reader(), 4, on_error="skipp")
    with pytest.raises(ValueError, match="the reader has no examples"):
        Stream(ArrayReader(pixels(0), np.zeros(0, int)), 4)
    with pytest.raises(FileNotFoundError, match="no such folder; expected one that holds a folder of images"):
        FolderReader(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="size must be from 1 to short=16 pixels, got 17"):
        FolderReader(tmp_path, 17, 16)
    with pytest.raises(ValueError, match=r"images must be uint8 \[N, H, W, C\], got float64 of shape \(2,\)"):
        ArrayReader(np.zeros(2), [0, 1])
    with pytest.raises(ValueError, match="labels must be whole numbers, one for each of 3 images"):
        ArrayReader(pixels(3), [0, 1])
    with pytest.raises(ValueError, match="labels run from 0 to 4, and there are 2 classes"):
        ArrayReader(pixels(3), [0, 1, 4], ("a", "b"))
