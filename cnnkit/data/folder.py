"""A data set from folders of images, one folder a class."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from cnnkit.data.dataset import Dataset, Split, from_arrays

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
GREY = frozenset({"1", "L", "LA", "I;16", "I;16B", "I;16L"})


def from_folder(
    path: str | os.PathLike,
    size: int | tuple[int, int] | None = None,
    *,
    test: float | int = 0.2,
    seed: int = 0,
    name: str | None = None,
) -> Dataset:
    """A data set from images in one folder a class, below ``train`` and ``test`` or straight below path.

    ::

        flowers/train/rose/1.jpg   flowers/test/rose/7.jpg      or      flowers/rose/1.jpg
        flowers/train/iris/2.jpg   flowers/test/iris/8.jpg              flowers/iris/2.jpg

    A third folder ``held_out`` beside the two is taken as the held-out part. Classes are numbered in
    alphabetical order. Images become RGB, or grey if every one of them is grey; what is transparent
    becomes black.

    Args:
        path: the folder.
        size: height and width of the images, one number for both. An image is scaled until it covers that
            size and its middle is kept. None asks that all images have one size already.
        test: without a test folder, the fraction (float) or number (int) of images that become the test
            part, the same share of every class.
        seed: which images become the test part.
        name: what to call the set; the folder's name when left out.

    Raises:
        FileNotFoundError: no such folder, or no images in it.
        ValueError: fewer than two classes, a class without images, images that cannot be read or, without
            `size`, differ in size; parts with different classes.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root}: no such folder; expected one that holds a folder of images for each class"
        )
    title = name or root.resolve().name
    parts = _parts(root)
    listed = {part: _listed(folder) for part, folder in parts.items()}
    classes = sorted(next(iter(listed.values())))
    for part, found in listed.items():
        if sorted(found) != classes:
            odd = sorted(set(found) ^ set(classes))
            raise ValueError(
                f"{root}: train and {part} need the same classes, but only one of them has {', '.join(odd)}"
            )
    files = {
        part: [(file, label) for label, c in enumerate(classes) for file in found[c]]
        for part, found in listed.items()
    }
    images = _images([file for rows in files.values() for file, _ in rows], _pair(size))
    splits, first = {}, 0
    for part, rows in files.items():
        labels = np.array([label for _, label in rows], np.int32)
        splits[part] = Split(images[first : first + len(rows)], labels)
        first += len(rows)
    if "all" in splits:
        return from_arrays(
            *splits["all"], classes=classes, name=title, test=test, seed=seed, source=str(root)
        )
    return Dataset(title, splits["train"], splits["test"], tuple(classes), splits.get("held_out"), str(root))


def _parts(root: Path) -> dict[str, Path]:
    """The folders of the parts there are; ``{"all": root}`` when the classes lie straight below root."""
    found = {}
    for part in ("train", "test", "held_out"):
        # A class may be called train: it holds images, a part holds folders.
        if (root / part).is_dir() and any(p.is_dir() for p in (root / part).iterdir()):
            found[part] = root / part
    if not found:
        return {"all": root}
    lacking = [part for part in ("train", "test") if part not in found]
    if lacking:
        raise ValueError(
            f"{root}: has a folder {next(iter(found))} but no folder {lacking[0]}; add it, "
            f"or load {next(iter(found.values()))} and let a part of it become the test part"
        )
    return found


def _listed(folder: Path) -> dict[str, list[Path]]:
    """The images of each class."""
    found = {}
    for place in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        found[place.name] = sorted(p for p in place.rglob("*") if _is_image(p))
    if not any(found.values()):
        kinds = " ".join(sorted(SUFFIXES))
        raise FileNotFoundError(
            f"{folder}: no images found; expected a folder for each class with images in it ({kinds})"
        )
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise ValueError(
            f"{folder}: no images for class {', '.join(empty)}: add some, or remove the empty folder"
        )
    if len(found) < 2:
        raise ValueError(
            f"{folder}: only one class, {next(iter(found))}; at least two are needed, each in a folder of its own"
        )
    return found


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _pair(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size must be at least 1 pixel, got {height}×{width}")
    return height, width


def _images(files: Sequence[Path], size: tuple[int, int] | None) -> np.ndarray:
    """All images as uint8 [N, H, W, C], read by several threads."""
    with ThreadPoolExecutor() as pool:  # decoding leaves the interpreter free
        looked = list(pool.map(_header, files))
        _complain(
            [(f, text) for f, text in zip(files, looked, strict=True) if isinstance(text, str)], len(files)
        )
        headers = [h for h in looked if not isinstance(h, str)]
        shapes = [shape for shape, _ in headers]
        if size is None and len(set(shapes)) > 1:
            other = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
            smallest = min(min(shape) for shape in shapes)
            raise ValueError(
                f"images differ in size: {files[0]} is {shapes[0][0]}×{shapes[0][1]}, "
                f"{files[other]} is {shapes[other][0]}×{shapes[other][1]}; "
                f"give one size for all, such as size={smallest}"
            )
        grey = all(mode in GREY for _, mode in headers)
        height, width = size or shapes[0]
        out = np.empty((len(files), height, width, 1 if grey else 3), np.uint8)
        faults = list(pool.map(lambda item: _decode(item[1], out[item[0]], size, grey), enumerate(files)))
    _complain([(f, text) for f, text in zip(files, faults, strict=True) if text], len(files))
    return out


def _header(path: Path) -> tuple[tuple[int, int], str] | str:
    """((height, width) once upright, mode), or why the image cannot be read."""
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) >= 5
            width, height = image.size[::-1] if turned else image.size
            return (height, width), image.mode
    except Exception as error:  # Pillow's decoders raise what they please
        return _why(error)


def _decode(path: Path, out: np.ndarray, size: tuple[int, int] | None, grey: bool) -> str | None:
    """Write an image's pixels to out [H, W, C]; why it could not be read, if so."""
    try:
        with Image.open(path) as opened:
            image = _eight_bits(ImageOps.exif_transpose(opened)).convert("L" if grey else "RGB")
            if size is not None and image.size != size[::-1]:
                image = ImageOps.fit(image, size[::-1], Image.Resampling.BICUBIC)
            out[...] = np.asarray(image).reshape(out.shape)
            return None
    except Exception as error:
        return _why(error)


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image with eight bits a channel and nothing transparent: black stands behind."""
    if image.mode.startswith("I;16"):  # Pillow would clip sixteen bits instead of scaling them
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels, mode {image.mode}; save it with 8 bits a channel")
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
    return image


def _why(error: Exception) -> str:
    text = "not an image" if isinstance(error, Image.UnidentifiedImageError) else str(error)
    return text or type(error).__name__


def _complain(broken: Sequence[tuple[Path, str]], total: int) -> None:
    if broken:
        some = "\n  ".join(f"{path} ({why})" for path, why in broken[:10])
        more = f"\n  … and {len(broken) - 10} more" if len(broken) > 10 else ""
        raise ValueError(
            f"{len(broken)} of {total:,} images cannot be read:\n  {some}{more}\nRepair or remove them, then load again"
        )
