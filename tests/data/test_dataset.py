"""Data sets in memory: what fits together, held-out and smaller parts, statistics, fingerprints."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnkit.data import Dataset, Split, from_arrays
from cnnkit.data.dataset import stratified


def numbered(n=60, classes=3, tests=12):
    """A set whose images carry their own number, so that one can tell where each went."""
    number = np.arange(n + tests)
    images = np.zeros((n + tests, 2, 3, 2), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = number % 256, number // 256
    labels = number % classes
    return from_arrays(images[:n], labels[:n], images[n:], labels[n:], name="numbered")


def numbers(split):
    return (split.images[:, 0, 0, 0] + 256 * split.images[:, 0, 0, 1].astype(int)).tolist()


def test_shape_length_and_parts():
    data = numbered()
    assert data.shape == (2, 3, 2)
    assert len(data) == 60
    assert data.parts == ("train", "test")
    assert data.train.images.dtype == np.uint8
    assert data.train.labels.dtype == np.int32
    assert data.split("test") is data.test
    assert data.classes == ("0", "1", "2")


def test_grey_images_get_a_channel():
    data = from_arrays(np.zeros((10, 4, 5), np.uint8), np.arange(10) % 2)
    assert data.shape == (4, 5, 1)


def test_without_a_test_part_a_fifth_is_set_aside():
    images = np.zeros((50, 2, 2, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(50)
    data = from_arrays(images, np.arange(50) % 5, seed=4)
    assert data.balance("train").tolist() == [8] * 5
    assert data.balance("test").tolist() == [2] * 5
    both = np.concatenate([data.train.images, data.test.images])[:, 0, 0, 0]
    assert sorted(both.tolist()) == list(range(50))
    assert len(from_arrays(images, np.arange(50) % 5, test=7).test.labels) == 7


def test_arrays_cannot_be_changed_by_accident_and_the_callers_stay_free():
    images = np.zeros((10, 2, 2, 1), np.uint8)
    data = from_arrays(images, np.arange(10) % 2, images, np.arange(10) % 2)
    with pytest.raises(ValueError, match="read-only"):
        data.train.images[0] = 1
    images[0] = 1


def test_hold_out_moves_and_loses_nothing():
    data = numbered()
    parted = data.hold_out(0.25, seed=1)
    assert parted.parts == ("train", "held_out", "test")
    assert parted.balance("held_out").tolist() == [5, 5, 5]
    assert sorted(numbers(parted.train) + numbers(parted.held_out)) == list(range(60))
    for part in ("train", "held_out"):
        assert [i % 3 for i in numbers(parted.split(part))] == parted.split(part).labels.tolist()
    assert numbers(parted.test) == numbers(data.test)
    assert len(data.hold_out(7).held_out.labels) == 7


def test_hold_out_depends_on_the_seed_alone():
    data = numbered()
    assert numbers(data.hold_out(12, seed=5).held_out) == numbers(data.hold_out(12, seed=5).held_out)
    assert numbers(data.hold_out(12, seed=5).held_out) != numbers(data.hold_out(12, seed=6).held_out)


def test_take_keeps_the_balance():
    data = numbered().hold_out(0.5).take(train=9, test=0.5, held_out=3)
    assert data.balance("train").tolist() == [3, 3, 3]
    assert data.balance("test").tolist() == [2, 2, 2]
    assert data.balance("held_out").tolist() == [1, 1, 1]
    assert numbered().take(train=9).balance("test").tolist() == [4, 4, 4]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=200), st.data())
def test_stratified_gives_each_class_its_share_to_within_one(labels, data):
    count = data.draw(st.integers(0, len(labels)))
    labels = np.array(labels)
    index = stratified(labels, count, data.draw(st.integers(-5, 5)))
    assert len(index) == len(set(index.tolist())) == count
    assert (np.diff(index) > 0).all()
    exact = np.bincount(labels) * count / len(labels)
    assert (np.abs(np.bincount(labels[index], minlength=len(exact)) - exact) < 1).all()


def test_stratified_draws_every_example_equally_often():
    drawn = np.zeros(30)
    for seed in range(1000):
        drawn[stratified(np.arange(30) % 3, 6, seed)] += 1
    # Binomial with 1,000 draws of probability 1/5: mean 200, deviation 12.6.
    assert np.abs(drawn - 200).max() < 5 * 12.6


def test_statistics_are_those_of_plain_numpy():
    images = np.random.default_rng(0).integers(0, 256, (5000, 3, 4, 3), np.uint8)
    images[..., 1] //= 2
    labels = np.arange(5000) % 2
    mean, std = from_arrays(images, labels, images[:9], labels[:9]).statistics()
    scaled = images.astype(np.float64) / 255
    assert mean.dtype == std.dtype == np.float32
    np.testing.assert_allclose(mean, scaled.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, scaled.std((0, 1, 2)), rtol=1e-6)


def test_the_fingerprint_sees_pixels_labels_classes_and_parts():
    data = numbered()
    images, labels = data.train.images.copy(), data.train.labels.copy()
    images[3, 1, 2, 1] ^= 1
    labels[4] = (labels[4] + 1) % 3
    others = [
        dataclasses.replace(data, train=data.train._replace(images=images)),
        dataclasses.replace(data, train=data.train._replace(labels=labels)),
        dataclasses.replace(data, classes=("0", "1", "two")),
        dataclasses.replace(data, train=data.test, test=data.train),
        data.hold_out(0.1),
    ]
    prints = {other.fingerprint() for other in others} | {data.fingerprint()}
    assert len(prints) == 6
    assert all(len(text) == 16 for text in prints)
    assert numbered().fingerprint() == data.fingerprint()
    assert dataclasses.replace(data, name="other", source="elsewhere").fingerprint() == data.fingerprint()


def test_summary_says_what_it_is():
    data = dataclasses.replace(numbered(61).hold_out(13), source="a shelf")
    text = str(data)
    assert "numbered: 2×3×2 images, 3 classes (0, 1, 2)" in text
    assert "train             48 examples, 16 a class" in text
    assert "held_out          13 examples, 4 to 5 a class" in text
    assert "from         a shelf" in text
    assert data.fingerprint() in text
    assert repr(data) == "Dataset('numbered': 48 train, 13 held_out, 12 test; 2×3×2, 3 classes)"


def blank(n=10, shape=(2, 2, 1)):
    return np.zeros((n, *shape), np.uint8)


TEN = np.arange(10) % 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: from_arrays(blank() / 255, TEN),
            r"must be uint8, 0 to 255, got float64; .*round\(images \* 255\)",
        ),
        (lambda: from_arrays(blank()[0, 0], TEN), r"\[N, height, width, channels\].* got shape 2×1"),
        (lambda: from_arrays(blank(0), TEN[:0]), "at least one example"),
        (lambda: from_arrays(blank(), TEN[:9]), "10 images but 9 labels"),
        (lambda: from_arrays(blank(), TEN / 2), "whole numbers .*float64"),
        (
            lambda: from_arrays(blank(), TEN, classes=["a"]),
            "label 1 of example 1 is not one of 0 to 0 .*5 labels are",
        ),
        (lambda: from_arrays(blank(), TEN - 1), "label -1 of example 0 is not one of 0 to 0"),
        (lambda: from_arrays(blank(), TEN, blank()), "give both test_images and test_labels, or neither"),
        (
            lambda: from_arrays(blank(), TEN, blank(10, (3, 2, 1)), TEN),
            "test images are 3×2×1 but train images are 2×2×1",
        ),
        (
            lambda: from_arrays(blank(), TEN, test=10),
            "test part of arrays: asked for 10 examples, can be 1 to 9",
        ),
        (lambda: numbered().hold_out(1.5), "between 0 and 1, got 1.5; write a whole number"),
        (lambda: numbered().hold_out(60), "hold_out of numbered: asked for 60 examples, can be 1 to 59"),
        (lambda: numbered().hold_out(0), "asked for 0 examples"),
        (lambda: numbered().hold_out(0.001), r"asked for 0 examples \(0.001 of 60\)"),
        (lambda: numbered().hold_out(5).hold_out(5), "already holds out 5 examples: call hold_out once"),
        (lambda: numbered().take(train=61), "take of numbered, train: asked for 61 examples, can be 1 to 60"),
        (lambda: numbered().take(held_out=3), "nothing held out: use data.hold_out"),
        (lambda: numbered().split("tset"), "unknown split 'tset': did you mean 'test'"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_the_dataset_itself_checks_its_parts():
    good = Split(blank(), TEN)
    with pytest.raises(ValueError, match="mine, held_out: images must be uint8"):
        Dataset("mine", good, good, ("a", "b"), held_out=Split(blank().astype(int), TEN))
