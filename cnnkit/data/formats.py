"""The official file formats: IDX (MNIST and its relatives) and the CIFAR binary records. No pickle."""

import math
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cnnkit.data.dataset import Split, shape_text

PIXELS = 32 * 32


def read_idx(path: str | os.PathLike) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, gzipped or not: images uint8 [N, H, W] or labels uint8 [N].

    Together with `from_arrays` it loads any set that comes in MNIST's format.

    Raises:
        ValueError: not an IDX file, another element type, or a length that its header does not give.
    """
    return parse_idx(inflated(Path(path).read_bytes(), str(path)), str(path))


def parse_idx(raw: bytes, what: str) -> np.ndarray:
    """The array in the bytes of an IDX file; `what` names the file in errors.

    Header, big-endian: two zero bytes, the element type (8: unsigned byte), the number of dimensions, then
    each dimension in four bytes.
    """
    if len(raw) < 4 or raw[:2] != b"\0\0":
        raise ValueError(
            f"{what}: not an IDX file: it begins with {raw[:4].hex(' ') or 'nothing'}, "
            "expected 00 00 08 and the number of dimensions"
        )
    kind, dimensions = raw[2], raw[3]
    if kind != 8:
        raise ValueError(
            f"{what}: an IDX file of element type 0x{kind:02x}; only 0x08, unsigned bytes, is read"
        )
    start = 4 + 4 * dimensions
    if not dimensions or len(raw) < start:
        raise ValueError(f"{what}: the IDX header says {dimensions} dimensions and ends before giving them")
    shape = tuple(np.frombuffer(raw, ">u4", dimensions, 4).tolist())
    if len(raw) - start != math.prod(shape):
        raise ValueError(
            f"{what}: the IDX header says {shape_text(shape)} = {math.prod(shape):,} bytes of data, "
            f"but the file holds {len(raw) - start:,}; fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_cifar(*paths: str | os.PathLike, fine: bool = False) -> Split:
    """Images and labels from CIFAR binary files, in the order given.

    Args:
        paths: files such as ``data_batch_1.bin`` of CIFAR-10, or ``train.bin`` of CIFAR-100.
        fine: CIFAR-100's records, whose fine label (0 to 99) is taken.

    Raises:
        ValueError: a length that is no whole number of records, or a label out of range.
    """
    return parse_cifar([(str(path), Path(path).read_bytes()) for path in paths], fine)


def parse_cifar(parts: Sequence[tuple[str, bytes]], fine: bool = False) -> Split:
    """Images and labels from the bytes of CIFAR binary files, each with the name it has in errors.

    A record is the label (CIFAR-100: coarse label, fine label), then 3 × 1,024 pixels, channel by channel.
    """
    limits = (("coarse label", 20), ("fine label", 100)) if fine else (("label", 10),)
    length = len(limits) + 3 * PIXELS
    records = [_records(raw, length, what) for what, raw in parts]
    counts = [len(rows) for rows in records]
    images = np.empty((sum(counts), PIXELS, 3), np.uint8)
    labels = np.empty(sum(counts), np.int32)

    def place(what: str, rows: np.ndarray, first: int) -> None:
        for column, (label, limit) in enumerate(limits):
            wrong = np.flatnonzero(rows[:, column] >= limit)
            if len(wrong):
                raise ValueError(
                    f"{what}: {label} {rows[wrong[0], column]} in record {wrong[0]:,} is not one of "
                    f"0 to {limit - 1}; is it the binary version of this set?"
                )
        labels[first : first + len(rows)] = rows[:, len(limits) - 1]
        pixels = rows[:, len(limits) :]
        # Blocks that stay in cache turn channel-major into NHWC in under half the time of one transpose.
        for low in range(0, len(rows), 64):
            block = pixels[low : low + 64]
            for c in range(3):
                images[first + low : first + low + len(block), :, c] = block[:, c * PIXELS : (c + 1) * PIXELS]

    with ThreadPoolExecutor() as pool:
        list(pool.map(place, [what for what, _ in parts], records, np.cumsum(counts) - counts))
    return Split(images.reshape(-1, 32, 32, 3), labels)


def inflated(raw: bytes, what: str, limit: int = 1 << 32) -> bytes:
    """The content of a file's bytes: unpacked if they are gzipped, else themselves.

    Args:
        raw: the file's bytes.
        what: names the file in errors.
        limit: never unpack more than this many bytes.

    Raises:
        ValueError: the gzip stream is cut short, damaged or longer than the limit.
    """
    if raw[:2] != b"\x1f\x8b":
        return raw
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(raw, limit + 1)
    except zlib.error as error:
        raise ValueError(f"{what}: damaged gzip file ({error})") from None
    if len(content) > limit:
        raise ValueError(f"{what}: unpacks to more than the {limit:,} bytes expected")
    if not stream.eof:
        raise ValueError(f"{what}: the gzip file is cut short after {len(raw):,} bytes")
    return content


def _records(raw: bytes, length: int, what: str) -> np.ndarray:
    if not raw or len(raw) % length:
        raise ValueError(
            f"{what}: {len(raw):,} bytes are no whole number of CIFAR records of {length:,} bytes; "
            "the file is cut short or of another format"
        )
    return np.frombuffer(raw, np.uint8).reshape(-1, length)
