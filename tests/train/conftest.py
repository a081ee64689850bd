"""What the tests of training share: programs compiled once, small data, small networks, silence."""

import os

import jax
import numpy as np
import pytest

from cnnkit.data import Dataset, from_arrays, load
from cnnkit.layers import Layer, batch_norm, dense, dropout, relu, serial
from cnnkit.train.measure import Measured
from cnnkit.train.run import Run


class Quiet:
    """A watcher that says nothing and remembers; ``at`` is called at every tick."""

    def __init__(self, at=lambda run: None):
        self.at, self.calls = at, []

    def begin(self, run):
        self.calls.append("begin")

    def tick(self, run):
        self.calls.append(run.phase)
        self.at(run)

    def row(self, run, row):
        self.calls.append(row["kind"])

    def end(self, run, why):
        self.calls.append(why)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(request):
    """Programs that several runs have in common, such as those of a resumed run, are compiled once."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    names += ("jax_persistent_cache_min_entry_size_bytes",)
    values = (str(request.config.cache.mkdir("jax")), 0, -1)
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, values, strict=True):
        jax.config.update(name, value)
    # For processes that a test starts, too.
    environment = {name.upper(): str(value) for name, value in zip(names, values, strict=True)}
    os.environ.update(environment)
    yield
    for name in environment:
        del os.environ[name]
    for name, value in zip(names, before, strict=True):
        jax.config.update(name, value)


@pytest.fixture(autouse=True)
def untimed(request, monkeypatch):
    """No round looks at the clock, as programs that do cannot be kept compiled; mark ``timed`` for those that shall."""
    if not request.node.get_closest_marker("timed"):
        monkeypatch.setattr(Measured, "due", lambda self, round: False)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """203 handwritten digits: no round number, so that the last mini-batch is padded."""
    return load("digits").take(train=203, test=101)


def small_net() -> Layer:
    """A network with everything that must survive an interrupt: statistics, dropout, decay, rates."""
    return serial(dense(16, decay=1e-3), batch_norm(), relu(), dropout(0.2), dense(10, lr=2.0))


def tiny_net(classes: int = 10) -> Layer:
    return serial(dense(classes))


@pytest.fixture
def make(digits):
    """A run of a tiny network; keyword arguments change it."""

    def make(net=None, data=None, **settings):
        settings = {"batch": 32, "epochs": 2, "watch": Quiet()} | settings
        return Run(net or tiny_net(), data or digits, **settings)

    return make


def plain_rows(run) -> list[dict]:
    """The rows of epochs, without what depends on the clock."""
    return [{k: v for k, v in row.items() if "seconds" not in k and "total" not in k} for row in run.history]


def flat(tree) -> np.ndarray:
    """All numbers of a tree in a row."""
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def blank(n: int = 40, classes: int = 2, test: int = 10, shape=(4, 4, 1)) -> Dataset:
    """Images of noise with labels by turns."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (n + test, *shape), np.uint8)
    labels = np.arange(n + test) % classes
    return from_arrays(images[:n], labels[:n], images[n:], labels[n:], name="noise")
