"""The official file formats, on small files made here byte by byte."""

import gzip
import struct

import numpy as np
import pytest

from cnnkit.data.formats import inflated, parse_idx, read_cifar, read_idx


def idx(array):
    array = np.asarray(array, np.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def cifar(labels, images):
    """CIFAR records from labels (a list of tuples) and images [N, 32, 32, 3]."""
    return b"".join(bytes(l) + i.transpose(2, 0, 1).tobytes() for l, i in zip(labels, images, strict=True))


@pytest.mark.parametrize("packed", [False, True])
def test_idx_gives_back_what_was_written(tmp_path, packed):
    images = np.random.default_rng(0).integers(0, 256, (7, 3, 5), np.uint8)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(idx(images)) if packed else idx(images))
    np.testing.assert_array_equal(read_idx(path), images)
    np.testing.assert_array_equal(parse_idx(idx([3, 1, 4]), "labels"), [3, 1, 4])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x89PNG....", "x: not an IDX file: it begins with 89 50 4e 47, expected 00 00 08"),
        (b"", "it begins with nothing"),
        (b"\0\0\x0d\x01\0\0\0\x01abcd", "element type 0x0d; only 0x08"),
        (b"\0\0\x08\x03\0\0\0\x01", "says 3 dimensions and ends before giving them"),
        (b"\0\0\x08\0", "says 0 dimensions"),
        (idx(np.zeros((2, 3, 4)))[:-1], "says 2×3×4 = 24 bytes of data, but the file holds 23"),
        (idx([1, 2]) + b"!", "says 2 = 2 bytes of data, but the file holds 3"),
    ],
)
def test_idx_with_a_wrong_header(raw, text):
    with pytest.raises(ValueError, match=text):
        parse_idx(raw, "x")


def test_a_damaged_gzip_file_is_named():
    packed = gzip.compress(bytes(range(256)) * 9)
    assert inflated(packed, "x") == bytes(range(256)) * 9
    with pytest.raises(ValueError, match=r"x\.gz: the gzip file is cut short after 40 bytes"):
        inflated(packed[:40], "x.gz")
    with pytest.raises(ValueError, match=r"x\.gz: damaged gzip file"):
        inflated(packed[:-6] + b"\0" * 6, "x.gz")
    with pytest.raises(ValueError, match="unpacks to more than the 100 bytes expected"):
        inflated(packed, "x.gz", limit=100)


def test_cifar_records_become_nhwc(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (130, 32, 32, 3), np.uint8)
    labels = np.arange(130) % 10
    for part in (0, 1):
        rows = slice(part * 65, part * 65 + 65)
        (tmp_path / f"{part}.bin").write_bytes(cifar([(l,) for l in labels[rows]], images[rows]))
    got = read_cifar(tmp_path / "0.bin", tmp_path / "1.bin")
    np.testing.assert_array_equal(got.images, images)
    np.testing.assert_array_equal(got.labels, labels)
    assert got.labels.dtype == np.int32


def test_cifar100_takes_the_fine_label(tmp_path):
    images = np.zeros((2, 32, 32, 3), np.uint8)
    (tmp_path / "train.bin").write_bytes(cifar([(19, 99), (3, 42)], images))
    assert read_cifar(tmp_path / "train.bin", fine=True).labels.tolist() == [99, 42]


@pytest.mark.parametrize(
    ("labels", "fine", "text"),
    [
        ([(3,), (10,)], False, "label 10 in record 1 is not one of 0 to 9; is it the binary version"),
        ([(20, 0)], True, "coarse label 20 in record 0 is not one of 0 to 19"),
        ([(0, 100)], True, "fine label 100 in record 0 is not one of 0 to 99"),
        ([(1, 1)], False, "3,074 bytes are no whole number of CIFAR records of 3,073 bytes"),
    ],
)
def test_cifar_errors(tmp_path, labels, fine, text):
    path = tmp_path / "some.bin"
    path.write_bytes(cifar(labels, np.zeros((len(labels), 32, 32, 3), np.uint8)))
    with pytest.raises(ValueError, match=f"some.bin: .*{text}"):
        read_cifar(path, fine=fine)
