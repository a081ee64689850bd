"""What people type on the command line, made into what it names."""

import argparse

import numpy as np
import pytest
from PIL import Image

from cnnkit import augment
from cnnkit.command import words
from cnnkit.train import arguments


def test_a_call_is_a_known_name_with_plain_arguments():
    made = arguments.augmentation("flip(), crop(32, pad=4, outside='reflect')")
    assert str(made) == "flip() → crop(32, pad=4, outside=reflect)"
    assert arguments.augmentation("flip").describe() == augment.flip().describe()
    staged = arguments.augmentation("stages((crop(24), 3), (crop(28), 2), crop(32, pad=4))")
    assert str(staged) == "stages((crop(24), 3), (crop(28), 2), crop(32, pad=4))"
    assert arguments.augmentation(None) is None


def test_an_optimizer_is_its_name_or_a_call_and_takes_a_number_or_a_schedule():
    assert arguments.optimizer("sgd", None).describe() == arguments.optimizer("sgd()", "0.01").describe()
    made = arguments.optimizer("muon(momentum=0.8)", "cosine(0.2, warmup=2)").describe()
    assert (made["name"], made["momentum"]) == ("muon", 0.8)
    assert made["schedule"] == {"name": "cosine", "peak": 0.2, "warmup": 2, "final": 0.0}
    stages = arguments.optimizer("sgd", "stages((0.05, 10), (0.01, 0.95, 10))").describe()["schedule"]
    assert stages["stages"] == [[0.05, 10], [0.01, 0.95, 10]]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: arguments.augmentation("flop()"), "unknown augmentation 'flop': did you mean 'flip'"),
        (
            lambda: arguments.augmentation("crop(32"),
            r"augmentation 'crop\(32' is not of the form name or name",
        ),
        (lambda: arguments.augmentation("3"), "augmentation '3' is not of the form"),
        (
            lambda: arguments.augmentation("crop(x.size)"),
            "arguments are plain numbers, words in quotes, and lists",
        ),
        (lambda: arguments.augmentation("flip(speed=3)"), "unexpected keyword argument 'speed'"),
        (lambda: arguments.optimizer("sdg", None), "unknown optimizer 'sdg': did you mean 'sgd'"),
        (lambda: arguments.optimizer("sgd", "cosin(0.1)"), "unknown schedule 'cosin': did you mean 'cosine'"),
        (lambda: arguments.optimizer("sgd", "-1"), "lr is -1.0; it must be a number above 0"),
        (lambda: words.network("lenett", 10), "unknown network 'lenett': did you mean 'lenet'"),
    ],
)
def test_what_cannot_be_read_is_told(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_network_of_ones_own_is_a_function_of_the_classes(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import cnnkit as ck\n\ndef small(classes):\n    return ck.serial(ck.dense(classes))\n")
    assert words.network(f"{file}:small", 7).describe()["parts"][0]["features"] == 7
    with pytest.raises(ValueError, match=r"unknown function of .*mine.py 'smal': did you mean 'small'"):
        words.network(f"{file}:smal", 7)
    with pytest.raises(
        FileNotFoundError, match=r"gone.py: no such file; a network of your own is written FILE"
    ):
        words.network(f"{tmp_path}/gone.py:net", 7)
    (tmp_path / "notes.txt").write_text("no code")
    with pytest.raises(ValueError, match="is not a Python file"):
        words.network(f"{tmp_path}/notes.txt:net", 7)


def options(*argv):
    parser = argparse.ArgumentParser()
    words.add_data(parser)
    return parser.parse_args(argv)


def test_data_is_a_name_or_a_folder_of_images(tmp_path):
    assert len(words.dataset(options("--take", "200", "--hold-out", "0.1"))) == 180
    assert words.dataset(options("--hold-out", "37")).held_out.labels.shape == (37,)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(np.full((12, 9, 3), 40 * i, np.uint8)).save(tmp_path / name / f"{i}.png")
    data = words.dataset(options("--data", str(tmp_path), "--size", "8"))
    assert (data.shape, data.classes) == ((8, 8, 3), ("cat", "dog"))
    with pytest.raises(ValueError, match="--size goes with a folder of images, and digits is no folder"):
        words.dataset(options("--size", "8"))


@pytest.mark.parametrize("text", ["1e", "many", ""])
def test_a_part_is_a_fraction_or_a_number(text):
    with pytest.raises(argparse.ArgumentTypeError, match="neither a fraction nor a whole number"):
        words.amount(text)
