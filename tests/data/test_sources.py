"""The sets known by name: the bundled digits, and the others in small, made here."""

import dataclasses
import hashlib
import io
import struct
import tarfile

import numpy as np
import pytest

from cnnkit.data import files, load, sources, status
from cnnkit.data.files import File


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Known sets are looked for below tmp_path alone, in what stands for CNNKIT_DATA."""
    monkeypatch.setenv("CNNKIT_DATA", str(tmp_path))
    monkeypatch.setattr(files, "PROJECT", tmp_path / "project")
    monkeypatch.setattr(files, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(files, "user_cache", lambda: tmp_path / "cache")
    return tmp_path


def shrunk(monkeypatch, name, contents):
    """Let the set of that name consist of these small files, and have no mirrors."""
    small = tuple(File(n, len(raw), hashlib.sha256(raw).hexdigest()) for n, raw in contents.items())
    names = [file.name for file in sources.SOURCES[name].files]
    assert [file.name for file in small] == names
    changed = dataclasses.replace(sources.SOURCES[name], files=small, mirrors=())
    monkeypatch.setitem(sources.SOURCES, name, changed)


def write(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in contents.items():
        (folder / name).write_bytes(raw)


def test_digits_are_bundled_whole():
    data = load()
    assert (len(data.train.labels), len(data.test.labels)) == (1437, 360)
    assert data.shape == (8, 8, 1)
    assert data.classes == tuple("0123456789")
    assert data.train.images.min() == 0
    assert data.train.images.max() == 255
    counts = data.balance("train") + data.balance("test")
    # The counts that the set's own description gives.
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.abs(data.balance("test") - counts * 360 / 1797).max() < 1


def test_digits_are_those_of_scikit_learn():
    raw = pytest.importorskip("sklearn.datasets").load_digits()
    data = load("digits")
    expected = sorted(
        np.round(i * 255 / 16).astype(np.uint8).tobytes() + bytes([t]) for i, t in zip(raw.images, raw.target)
    )
    both = [(i, l) for split in (data.train, data.test) for i, l in zip(split.images, split.labels)]
    assert sorted(i.tobytes() + bytes([l]) for i, l in both) == expected


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_idx_sets(places, monkeypatch, name):
    images = np.random.default_rng(0).integers(0, 256, (7, 28, 28), np.uint8)
    labels = np.array([0, 9, 4, 5, 6, 7, 8], np.uint8)

    def idx(array):
        return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()

    parts = [idx(images[:5]), idx(labels[:5]), idx(images[5:]), idx(labels[5:])]
    contents = {f.name: raw for f, raw in zip(sources.SOURCES[name].files, parts, strict=True)}
    shrunk(monkeypatch, name, contents)
    write(places / name, contents)
    data = load(name)
    np.testing.assert_array_equal(data.train.images[..., 0], images[:5])
    np.testing.assert_array_equal(data.test.images[..., 0], images[5:])
    assert data.train.labels.tolist() == [0, 9, 4, 5, 6]
    assert data.test.labels.tolist() == [7, 8]
    assert data.source == str(places / name)


def cifar(labels, images):
    return b"".join(bytes(l) + i.transpose(2, 0, 1).tobytes() for l, i in zip(labels, images, strict=True))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_cifar_sets_from_their_archive(places, monkeypatch, name):
    known = sources.SOURCES[name]
    count = len(known.files)
    images = np.random.default_rng(0).integers(0, 256, (2 * count, 32, 32, 3), np.uint8)
    labels = [(i % 10,) if name == "cifar10" else (i % 20, 99 - i) for i in range(2 * count)]
    contents = {
        f.name: cifar(labels[2 * i : 2 * i + 2], images[2 * i : 2 * i + 2]) for i, f in enumerate(known.files)
    }
    shrunk(monkeypatch, name, contents)
    (places / name).mkdir()
    with tarfile.open(places / name / known.archive, "w:gz") as tar:
        for member, raw in contents.items():
            info = tarfile.TarInfo(f"{known.aliases[0]}/{member}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    data = load(name)
    np.testing.assert_array_equal(data.train.images, images[:-2])
    np.testing.assert_array_equal(data.test.images, images[-2:])
    assert data.train.labels.tolist() == [row[-1] for row in labels[:-2]]
    assert data.test.labels.tolist() == [row[-1] for row in labels[-2:]]


def test_class_names():
    for name, count in (("mnist", 10), ("fashion_mnist", 10), ("cifar10", 10), ("cifar100", 100)):
        classes = sources.SOURCES[name].classes
        assert len(set(classes)) == count
        assert all(text == text.strip() != "" for text in classes)
    assert sources.CIFAR10.classes[3] == "cat"
    assert sources.FASHION_MNIST.classes[9] == "ankle boot"
    assert sorted(sources.CIFAR100.classes) == list(sources.CIFAR100.classes)


def test_an_unknown_name():
    with pytest.raises(
        ValueError,
        match=r"unknown data set 'cifar-10': did you mean 'cifar10'.* Known: cifar10, cifar100, digits,",
    ):
        load("cifar-10")


def test_status_says_what_is_where(places):
    (places / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"):
        (places / "mnist" / name).touch()
    (places / "cache" / "cifar100").mkdir(parents=True)
    (places / "cache" / "cifar100" / "cifar-100-binary.tar.gz").touch()
    found = {row.name: row for row in status()}
    assert list(found) == ["digits", "mnist", "fashion_mnist", "cifar10", "cifar100"]
    assert found["digits"].present
    assert found["cifar100"].present
    assert found["cifar100"].where == places / "cache" / "cifar100"
    assert not found["mnist"].present
    assert found["mnist"].where == places / "mnist"
    assert found["mnist"].missing == ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    assert found["cifar10"].where == places / "cifar10"
    assert len(found["cifar10"].missing) == 6
    assert {row.name for row in status(places / "cache") if row.present} == {"digits", "cifar100"}


PUBLISHED = {
    "mnist": ([0.1307], [0.3081]),
    "fashion_mnist": ([0.2860], [0.3530]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_official_sets_have_the_published_statistics(monkeypatch, name):
    monkeypatch.undo()
    if not {row.name: row.present for row in status()}[name]:
        pytest.skip(f"{name} is not on this machine; set CNNKIT_DATA, or load it once")
    data = load(name)
    mean, std = data.statistics()
    np.testing.assert_allclose(mean, PUBLISHED[name][0], atol=1e-4)
    np.testing.assert_allclose(std, PUBLISHED[name][1], atol=1e-4)
    assert len(data) + len(data.test.labels) == (60_000 if "cifar" in name else 70_000)
