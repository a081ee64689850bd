"""Where a stream's examples come from: folders of images, and arrays that may lie on disk."""

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps

from cnnkit.data.folder import _eight_bits, _listed

_ORIENTATION = 0x0112


class Reader(Protocol):
    """What a stream reads from. `read` waits for the disk, `decode` for the processor; both run on threads.

    Attributes:
        shape: (H, W, C) of every example.
        classes: names of the classes; a label is a place in them.
    """

    shape: tuple[int, int, int]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """How many examples there are."""

    def name(self, i: int) -> str:
        """What example i is called in errors, e.g. its file."""

    def label(self, i: int) -> int:
        """The class of example i."""

    def read(self, i: int) -> Any:
        """Example i as it is stored; raises OSError where it is not there."""

    def decode(self, raw: Any, into: np.ndarray) -> None:
        """Writes what `read` returned into uint8 [H, W, C]; raises where it is damaged."""


class FolderReader:
    """Images in one folder a class, decoded when they are needed.

    The shorter side is scaled to `short` pixels and the middle size × size is kept, in one step from the
    original's pixels; a JPEG is decoded no larger than that needs, by its own frequencies.

    Args:
        path: the folder that holds the classes' folders.
        size: height and width of what is kept.
        short: what the shorter side is scaled to; size · 256/224 by default, as is usual for ImageNet.

    Raises:
        FileNotFoundError: no such folder, or no images in it.
        ValueError: fewer than two classes, a class without images, a size below 1 or above short.
    """

    def __init__(self, path: str | os.PathLike, size: int = 224, short: int | None = None):
        short = round(size * 256 / 224) if short is None else short
        if not 1 <= size <= short:
            raise ValueError(f"size must be from 1 to short={short} pixels, got {size}")
        root = Path(path).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(
                f"{root}: no such folder; expected one that holds a folder of images for each class"
            )
        listed = _listed(root)
        self.shape = (size, size, 3)
        self.classes = tuple(sorted(listed))
        self._part = size / short
        self._files = [file for name in self.classes for file in listed[name]]
        self._labels = [label for label, name in enumerate(self.classes) for _ in listed[name]]

    def __len__(self) -> int:
        return len(self._files)

    def name(self, i: int) -> str:
        return str(self._files[i])

    def label(self, i: int) -> int:
        return self._labels[i]

    def read(self, i: int) -> bytes:
        return self._files[i].read_bytes()

    def decode(self, raw: bytes, into: np.ndarray) -> None:
        size = into.shape[0]
        with Image.open(BytesIO(raw)) as opened:
            width, height = opened.size
            side = self._part * min(width, height)
            opened.draft("RGB", (int(width * size / side) + 1, int(height * size / side) + 1))
            image: Image.Image = opened
            if opened.getexif().get(_ORIENTATION, 1) != 1:
                image = ImageOps.exif_transpose(opened)
            image = _eight_bits(image).convert("RGB")
        width, height = image.size
        side = self._part * min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        into[...] = np.asarray(
            image.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        )


class ArrayReader:
    """Examples in an array that need not fit into memory, such as ``np.load(path, mmap_mode="r")``.

    Args:
        images: uint8 [N, H, W, C].
        labels: [N] whole numbers from 0.
        classes: their names; their numbers by default.

    Raises:
        ValueError: other shapes or types, unequal lengths, a label without a class.

    >>> reader = ArrayReader(np.zeros((3, 2, 2, 1), np.uint8), [0, 1, 0])
    >>> len(reader), reader.shape, reader.classes, reader.label(1)
    (3, (2, 2, 1), ('0', '1'), 1)
    """

    def __init__(
        self, images: np.ndarray, labels: Sequence[int] | np.ndarray, classes: Sequence[str] | None = None
    ):
        self._images, self._labels = images, np.asarray(labels)
        if images.ndim != 4 or images.dtype != np.uint8:
            raise ValueError(f"images must be uint8 [N, H, W, C], got {images.dtype} of shape {images.shape}")
        if self._labels.shape != images.shape[:1] or not np.issubdtype(self._labels.dtype, np.integer):
            raise ValueError(
                f"labels must be whole numbers, one for each of {len(images)} images, "
                f"got {self._labels.dtype} of shape {self._labels.shape}"
            )
        most = int(self._labels.max(initial=-1))
        self.classes = tuple(map(str, range(most + 1))) if classes is None else tuple(classes)
        if most >= len(self.classes) or self._labels.min(initial=0) < 0:
            raise ValueError(
                f"labels run from {self._labels.min()} to {most}, and there are {len(self.classes)} classes"
            )
        height, width, channels = images.shape[1:]
        self.shape = (height, width, channels)

    def __len__(self) -> int:
        return len(self._images)

    def name(self, i: int) -> str:
        return f"image {i} of {getattr(self._images, 'filename', None) or 'the array'}"

    def label(self, i: int) -> int:
        return int(self._labels[i])

    def read(self, i: int) -> np.ndarray:
        return self._images[i]

    def decode(self, raw: np.ndarray, into: np.ndarray) -> None:
        into[...] = raw
