"""Folders of images, written here with Pillow."""

import numpy as np
import pytest
from PIL import Image

from cnnkit.data import from_folder


def save(path, pixels, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **more)


def flat(value, shape=(4, 6, 3)):
    return np.full(shape, value, np.uint8)


def two_classes(root, each=5):
    for i in range(each):
        save(root / "rose" / f"{i}.png", flat(100 + i))
        save(root / "iris" / f"{i}.png", flat(i))
    return root


def test_one_folder_is_split_by_class(tmp_path):
    data = from_folder(two_classes(tmp_path / "flowers"), test=0.4)
    assert repr(data) == "Dataset('flowers': 6 train, 4 test; 4×6×3, 2 classes)"
    assert data.classes == ("iris", "rose")
    assert data.balance("test").tolist() == [2, 2]
    values = {0: [], 1: []}
    for split in (data.train, data.test):
        for image, label in zip(split.images, split.labels, strict=True):
            values[int(label)].append(int(image[0, 0, 0]))
    assert sorted(values[0]) == [0, 1, 2, 3, 4]
    assert sorted(values[1]) == [100, 101, 102, 103, 104]
    assert data.source == str(tmp_path / "flowers")


def test_train_test_and_held_out_folders(tmp_path):
    for part, each in (("train", 3), ("test", 2), ("held_out", 1)):
        two_classes(tmp_path / part, each)
    data = from_folder(tmp_path, name="mine")
    assert repr(data) == "Dataset('mine': 6 train, 2 held_out, 4 test; 4×6×3, 2 classes)"
    assert data.test.images[:, 0, 0, 0].tolist() == [0, 1, 100, 101]
    assert data.test.labels.tolist() == [0, 0, 1, 1]


def test_a_class_may_be_called_train(tmp_path):
    save(tmp_path / "train" / "0.png", flat(1))
    save(tmp_path / "plane" / "0.png", flat(2))
    assert from_folder(tmp_path, test=1).classes == ("plane", "train")


def test_grey_only_if_all_are(tmp_path):
    save(tmp_path / "a" / "0.png", flat(7, (4, 4)))
    save(tmp_path / "b" / "0.png", flat(9, (4, 4)))
    assert from_folder(tmp_path, test=1).shape == (4, 4, 1)
    save(tmp_path / "b" / "1.png", np.stack([flat(1, (4, 4)), flat(2, (4, 4)), flat(3, (4, 4))], -1))
    data = from_folder(tmp_path, test=1)
    assert data.shape == (4, 4, 3)
    assert sorted(i[0, 0].tolist() for i in (*data.train.images, *data.test.images)) == [
        [1, 2, 3],
        [7] * 3,
        [9] * 3,
    ]


def test_sixteen_bits_are_scaled_and_transparency_is_black(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((4, 4), 0x8FFF, np.uint16)).save(tmp_path / "a" / "0.png")
    save(tmp_path / "b" / "0.png", np.broadcast_to(np.array([200, 100, 50, 0], np.uint8), (4, 4, 4)))
    save(tmp_path / "b" / "1.png", np.broadcast_to(np.array([200, 100, 50, 255], np.uint8), (4, 4, 4)))
    data = from_folder(tmp_path, test=1)
    pixels = sorted(i[0, 0].tolist() for i in (*data.train.images, *data.test.images))
    assert pixels == [[0, 0, 0], [0x8F] * 3, [200, 100, 50]]


def test_size_scales_and_keeps_the_middle(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    save(tmp_path / "a" / "0.png", wide)
    save(tmp_path / "b" / "0.png", flat(50, (5, 5, 3)))
    data = from_folder(tmp_path, size=10, test=1)
    assert data.shape == (10, 10, 3)
    images = [*data.train.images, *data.test.images]
    white = max(images, key=lambda image: int(image.sum()))
    assert white.min() == 255
    assert from_folder(tmp_path, size=(4, 8), test=1).shape == (4, 8, 3)


def test_photographs_stand_upright(tmp_path):
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    save(tmp_path / "a" / "0.png", pixels, exif=exif)
    save(tmp_path / "b" / "0.png", flat(0, (16, 8, 3)))
    data = from_folder(tmp_path, test=1)
    image = max((*data.train.images, *data.test.images), key=lambda i: int(i.sum()))
    assert image.shape == (16, 8, 3)
    assert image[:8].min() == 255
    assert image[8:].max() == 0


def test_hidden_and_foreign_files_are_left_out(tmp_path):
    two_classes(tmp_path, 2)
    (tmp_path / "rose" / ".hidden.png").write_bytes(b"x")
    (tmp_path / "rose" / "notes.txt").write_text("x")
    (tmp_path / ".cache").mkdir()
    save(tmp_path / "rose" / "more" / "deep.PNG", flat(9))
    assert from_folder(tmp_path, test=1).balance("train").sum() == 4


def test_broken_images_are_named(tmp_path):
    two_classes(tmp_path, 2)
    (tmp_path / "iris" / "no.png").write_bytes(b"this is no image")
    with pytest.raises(
        ValueError, match=r"(?s)1 of 5 images cannot be read:.*no.png \(not an image\).*Repair or remove"
    ):
        from_folder(tmp_path)
    (tmp_path / "iris" / "no.png").unlink()
    noise = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    save(tmp_path / "iris" / "cut.png", noise)
    cut = tmp_path / "iris" / "cut.png"
    cut.write_bytes(cut.read_bytes()[:70])
    with pytest.raises(ValueError, match=r"1 of 5 images cannot be read:\n.*cut.png \("):
        from_folder(tmp_path)


def test_pixels_of_32_bits_are_refused(tmp_path):
    two_classes(tmp_path, 2)
    Image.fromarray(np.zeros((4, 6), np.float32)).save(tmp_path / "iris" / "f.tiff")
    with pytest.raises(ValueError, match=r"f.tiff \(32-bit pixels, mode F; save it with 8 bits"):
        from_folder(tmp_path)


def test_mixed_sizes_suggest_a_size(tmp_path):
    two_classes(tmp_path, 2)
    save(tmp_path / "rose" / "9.png", flat(0, (3, 9, 3)))
    with pytest.raises(
        ValueError, match=r"iris/0.png is 4×6, .*rose/9.png is 3×9; give one size for all, such as size=3"
    ):
        from_folder(tmp_path)


def test_an_empty_class(tmp_path):
    (two_classes(tmp_path) / "tulip").mkdir()
    with pytest.raises(ValueError, match="no images for class tulip: add some, or remove the empty folder"):
        from_folder(tmp_path)


def test_a_single_class(tmp_path):
    save(tmp_path / "rose" / "0.png", flat(0))
    with pytest.raises(ValueError, match="only one class, rose; at least two are needed"):
        from_folder(tmp_path)


def test_parts_with_different_classes(tmp_path):
    two_classes(tmp_path / "train")
    two_classes(tmp_path / "test")
    save(tmp_path / "test" / "tulip" / "0.png", flat(0))
    with pytest.raises(
        ValueError, match="train and test need the same classes, but only one of them has tulip"
    ):
        from_folder(tmp_path)


def test_train_without_test(tmp_path):
    two_classes(tmp_path / "train")
    with pytest.raises(
        ValueError, match=r"has a folder train but no folder test; add it, or load .*train and let a part"
    ):
        from_folder(tmp_path)


def test_no_folder_and_no_images(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="nowhere: no such folder; expected one that holds a folder of images"
    ):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"no images found; expected a folder for each class with images"
    ):
        from_folder(tmp_path)
    two_classes(tmp_path)
    with pytest.raises(ValueError, match="size must be at least 1 pixel, got 0×0"):
        from_folder(tmp_path, size=0)
