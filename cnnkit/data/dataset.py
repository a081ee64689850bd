"""A data set in memory: uint8 images and their labels, split into training, held-out and test parts."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cnnkit.names import choose


class Split(NamedTuple):
    """One part of a data set: images uint8 [N, H, W, C], labels int32 [N]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images with their classes: what a run trains on and is judged by.

    Args:
        name: what the set is called in records and figures.
        train: the examples to learn from.
        test: the examples that judge, never used for a choice.
        classes: the name of each label, in order.
        held_out: a part set aside from train, for choices; see `hold_out`.
        source: where the set came from, in words.

    Raises:
        ValueError: dtypes, shapes, lengths or labels that do not fit together.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    held_out: Split | None = None
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(str(c) for c in self.classes))
        for part in self.parts:
            object.__setattr__(self, part, _checked(self.split(part), f"{self.name}, {part}", self.classes))
        for part in self.parts:
            shape = self.split(part).images.shape[1:]
            if shape != self.shape:
                raise ValueError(
                    f"{self.name}: {part} images are {shape_text(shape)} but train images are "
                    f"{shape_text(self.shape)}; all parts need one shape (height × width × channels)"
                )

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts there are: train, held_out if some are held out, test."""
        return ("train", "test") if self.held_out is None else ("train", "held_out", "test")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image."""
        height, width, channels = self.train.images.shape[1:]
        return height, width, channels

    def __len__(self) -> int:
        return len(self.train.labels)

    def split(self, name: str) -> Split:
        """The part of that name: ``"train"``, ``"held_out"`` or ``"test"``.

        Raises:
            ValueError: no such part, or nothing is held out.
        """
        part = choose(name, {"train": self.train, "held_out": self.held_out, "test": self.test}, "split")
        if part is None:
            raise ValueError(
                f"{self.name} has nothing held out: use data.hold_out(0.1) first, or another split"
            )
        return part

    def hold_out(self, part: float | int, seed: int = 0) -> "Dataset":
        """Move a part of train, the same share of every class, into held_out.

        Args:
            part: a fraction between 0 and 1 (float), or a number of examples (int).
            seed: which examples; the same seed gives the same ones anywhere.

        Raises:
            ValueError: the part leaves nothing on one side, or some are held out already.

        >>> from cnnkit.data import load
        >>> data = load("digits").hold_out(0.1)
        >>> len(data.train.labels), len(data.held_out.labels), len(data.test.labels)
        (1293, 144, 360)
        """
        if self.held_out is not None:
            raise ValueError(
                f"{self.name} already holds out {len(self.held_out.labels):,} examples: "
                "call hold_out once, on the data set as loaded"
            )
        count = _count(part, len(self), f"hold_out of {self.name}", most=len(self) - 1)
        chosen = np.zeros(len(self), bool)
        chosen[stratified(self.train.labels, count, seed)] = True
        return replace(self, train=_pick(self.train, ~chosen), held_out=_pick(self.train, chosen))

    def take(
        self,
        train: float | int | None = None,
        test: float | int | None = None,
        held_out: float | int | None = None,
        seed: int = 0,
    ) -> "Dataset":
        """A smaller set with the same share of every class, for smoke runs.

        Args:
            train, test, held_out: how much of each part to keep, as a fraction (float) or a number (int);
                None keeps all of it.
            seed: which examples.

        Raises:
            ValueError: more than there is, or none.
        """
        wanted = {"train": train, "test": test, "held_out": held_out}
        smaller: dict[str, Any] = {}
        for part, amount in wanted.items():
            if amount is not None:
                split = self.split(part)
                count = _count(amount, len(split.labels), f"take of {self.name}, {part}", len(split.labels))
                smaller[part] = _pick(split, stratified(split.labels, count, seed))
        return replace(self, **smaller)

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the training images divided by 255, float32 [C] each."""
        mean, std = self._statistics
        return mean.copy(), std.copy()

    @cached_property
    def _statistics(self) -> tuple[np.ndarray, np.ndarray]:
        # Sums of whole numbers are exact, so that the figures do not depend on the order of summation. They are
        # taken over lines first, as numpy is fast where many neighbours are added to many.
        (_, width, channels), n = self.shape, self.train.images[..., 0].size
        total, squares = np.zeros((2, channels), object)
        for first in range(0, len(self), 256):
            lines = self.train.images[first : first + 256].reshape(-1, width * channels)
            for sums, values in ((total, lines), (squares, np.square(lines, dtype=np.uint16))):
                sums += values.sum(0, dtype=np.uint64).reshape(width, channels).sum(0).astype(object)
        mean = [t / (255 * n) for t in total]
        std = [math.sqrt((n * q - t * t) / (255 * n) ** 2) for t, q in zip(total, squares)]
        return np.array(mean, np.float32), np.array(std, np.float32)

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of a SHA-256 over classes, shapes, labels and pixels of every part."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.classes).encode())
        for part in self.parts:
            images, labels = self.split(part)
            digest.update(f"{part} {images.shape}".encode())
            digest.update(labels.astype("<i4").tobytes())
            digest.update(np.ascontiguousarray(images).data)
        return digest.hexdigest()[:16]

    def balance(self, part: str = "train") -> np.ndarray:
        """How many examples of each class a part has, int64 [classes]."""
        return np.bincount(self.split(part).labels, minlength=len(self.classes))

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.split(p).labels):,} {p}" for p in self.parts)
        return f"Dataset({self.name!r}: {counts}; {shape_text(self.shape)}, {len(self.classes)} classes)"

    def __str__(self) -> str:
        """A summary of several lines: counts, shape, classes and their balance, where it lies."""
        names = ", ".join(self.classes[:10]) + (", …" if len(self.classes) > 10 else "")
        lines = [f"{self.name}: {shape_text(self.shape)} images, {len(self.classes)} classes ({names})"]
        for part in self.parts:
            counts = self.balance(part)
            spread = (
                f"{counts.min():,}"
                if counts.min() == counts.max()
                else f"{counts.min():,} to {counts.max():,}"
            )
            lines.append(f"  {part:<12} {counts.sum():>7,} examples, {spread} a class")
        lines.append(f"  {'from':<12} {self.source or 'arrays in memory'}")
        lines.append(f"  {'fingerprint':<12} {self.fingerprint()}")
        return "\n".join(lines)


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray,
    test_images: np.ndarray | None = None,
    test_labels: np.ndarray | None = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    test: float | int = 0.2,
    seed: int = 0,
    source: str = "",
) -> Dataset:
    """A data set from arrays of your own.

    Args:
        images: uint8 [N, H, W, C], or [N, H, W] for grey images.
        labels: whole numbers [N], from 0.
        test_images, test_labels: the test part; left out, `test` of the examples are set aside for it.
        classes: the name of each label; ``"0"``, ``"1"``, … when left out.
        name: what to call it.
        test: fraction (float) or number (int) of examples that become the test part, the same share of
            every class; not used when a test part is given.
        seed: which examples become the test part.
        source: where the arrays came from, in words.

    Raises:
        ValueError: arrays that do not fit together.

    >>> grey = np.zeros((10, 4, 4), np.uint8)
    >>> from_arrays(grey, np.arange(10) % 2, name="blank")
    Dataset('blank': 8 train, 2 test; 4×4×1, 2 classes)
    """
    train = Split(np.asarray(images), np.asarray(labels))
    if (test_images is None) != (test_labels is None):
        raise ValueError(f"{name}: give both test_images and test_labels, or neither")
    if classes is None:
        seen = [train.labels] if test_labels is None else [train.labels, np.asarray(test_labels)]
        count = 1 + max(
            (int(part.max()) for part in seen if part.size and part.dtype.kind in "iu"), default=0
        )
        classes = [str(i) for i in range(max(count, 1))]
    if test_images is not None and test_labels is not None:
        held = Split(np.asarray(test_images), np.asarray(test_labels))
    else:
        train = _checked(train, name, tuple(classes))
        count = _count(test, len(train.labels), f"test part of {name}", most=len(train.labels) - 1)
        chosen = np.zeros(len(train.labels), bool)
        chosen[stratified(train.labels, count, seed)] = True
        train, held = _pick(train, ~chosen), _pick(train, chosen)
    return Dataset(name, train, held, tuple(classes), source=source)


def stratified(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Indices of `count` examples, ascending, each class with its share to within one (largest remainder).

    Args:
        labels: int [N].
        count: how many, at most N.
        seed: which ones; a function of labels, count and seed alone.
    """
    # Raw Philox words are the same for every NumPy and platform; Generator's methods may change.
    random = np.random.Philox(key=np.array([seed % 2**64, 0x5EED], np.uint64)).random_raw(len(labels))
    sizes = np.bincount(labels)
    wanted, rest = np.divmod(sizes * count, len(labels))
    most_left = np.argsort(-rest, kind="stable")[: count - wanted.sum()]
    wanted[most_left] += 1
    order = np.lexsort((random, labels))
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < np.repeat(wanted, sizes)])


def shape_text(shape: Sequence[int]) -> str:
    """A shape as people write it: 28×28×1."""
    return "×".join(str(n) for n in shape)


def _pick(split: Split, index: np.ndarray) -> Split:
    return Split(split.images[index], split.labels[index])


def _count(part: float | int, total: int, what: str, most: int) -> int:
    fraction = isinstance(part, (float, np.floating))
    if fraction and not 0 < part <= 1:
        raise ValueError(
            f"{what}: a fraction must lie between 0 and 1, got {part}; write a whole number to count examples"
        )
    count = round(part * total) if fraction else int(part)
    if not 1 <= count <= most:
        of = f" ({part} of {total:,})" if fraction else ""
        raise ValueError(f"{what}: asked for {count:,} examples{of}, can be 1 to {most:,}")
    return count


def _checked(split: Split, what: str, classes: tuple[str, ...]) -> Split:
    images, labels = np.asarray(split.images), np.asarray(split.labels)
    if images.dtype != np.uint8:
        raise ValueError(
            f"{what}: images must be uint8, 0 to 255, got {images.dtype}; "
            "from floats between 0 and 1: np.round(images * 255).astype(np.uint8)"
        )
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(
            f"{what}: images must be [N, height, width, channels] with at least one example, "
            f"got shape {shape_text(images.shape)}"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{what}: labels must be a list of whole numbers [N], got {labels.dtype} of shape {labels.shape}"
        )
    if len(labels) != len(images):
        raise ValueError(f"{what}: {len(images):,} images but {len(labels):,} labels; each image needs one")
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise ValueError(
            f"{what}: label {labels[wrong[0]]} of example {wrong[0]:,} is not one of 0 to {len(classes) - 1} "
            f"({len(classes)} classes; {len(wrong):,} labels are out of range)"
        )
    return Split(_frozen(images), _frozen(labels.astype(np.int32)))


def _frozen(array: np.ndarray) -> np.ndarray:
    # A view, so that an array of the caller's stays writable for the caller.
    view = array.view()
    view.flags.writeable = False
    return view
