"""Bad input and bad disks: an error that says what to do, and nothing lost."""

import errno
import json
import os
import resource
import subprocess
import sys

import jax
import numpy as np
import pytest

import cnnkit
from cnnkit.augment import crop
from cnnkit.layers import conv, dense, max_pool, relu, serial
from cnnkit.parallel.emulate import emulate
from cnnkit.record import checkpoint
from cnnkit.train import loop, optim
from tests.train.conftest import Quiet, blank, flat, plain_rows, small_net


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be a whole number of at least 1"),
        ({"batch": 2.5}, "batch is 2.5; it must be a whole number of at least 1"),
        ({"batch": 204}, "batch is 204, but digits has only 203 training examples; take a smaller batch"),
        ({"epochs": 0}, "epochs is 0; it must be a whole number of at least 1"),
        ({"seed": -1}, "seed is -1; it must be a whole number of at least 0"),
        ({"evaluate_every": 0}, "evaluate_every is 0; it must be a whole number of at least 1"),
        ({"checkpoint_every": -1}, "checkpoint_every is -1; it must be a number of at least 0"),
        ({"checkpoint_every": float("nan")}, "checkpoint_every is nan; it must be a number of at least 0"),
        ({"workers": 0}, "workers is 0; it must be a whole number of at least 1"),
        ({"loss": "crossentropy"}, "unknown loss 'crossentropy': did you mean 'cross_entropy'"),
        ({"smoothing": 1.0}, "smoothing is 1.0; it must be at least 0 and below 1"),
        ({"smoothing": 0.1, "loss": "squared_error"}, "smoothing=0.1 goes with loss='cross_entropy', not 'squared_error'"),
        ({"dtype": "float16"}, "unknown dtype 'float16': did you mean 'bfloat16'"),
        ({"judge": "tset"}, "unknown split 'tset': did you mean 'test'"),
        ({"judge": "held_out"}, "digits has nothing held out: use data.hold_out"),
        ({"mode": "lokal"}, "unknown mode 'lokal': did you mean 'local'"),
        ({"exchange": "rings"}, "unknown exchange 'rings': did you mean 'ring'"),
        ({"payload": "int4"}, "unknown payload 'int4': did you mean 'int8'"),
        ({"momentum": "keeps"}, "unknown inner momentum 'keeps': did you mean 'keep'"),
        ({"outer": "nestrov"}, "unknown outer step 'nestrov': did you mean 'nesterov'"),
        ({"outer_lr": -0.5}, "outer_lr is -0.5; it must be a number above 0"),
        ({"outer_momentum": 1.0}, "outer_momentum is 1.0; it must be at least 0 and below 1"),
        ({"delay": 2}, "delay is 2; it must be 0 or 1 round"),
        ({"mode": "accumulate", "outer": "nesterov"}, "outer='nesterov' goes with mode='local'"),
        ({"fetch": "evry(4)"}, "unknown fetch policy 'evry': did you mean 'every'"),
        ({"fetch": 0}, "every: k is a whole number of at least 1, got 0"),
        ({"fetch": "hide(1.0)"}, r"hide\(1.0\) cannot be reached with delay=0"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_work_is_named_before_anything_is_compiled(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_a_network_that_does_not_fit_is_known_by_its_layer(make):
    cases = [
        (serial(conv(4, 3), max_pool(2), conv(4, 5), dense(10)), "layer 2 .conv 4 5×5.* got 3×3×4"),
        (serial(dense(16), relu(), conv(4, 3)), r"layer 2 \(conv 4 3×3\).* got 16"),
        (serial(dense(16)), r"the network ends in shape 16 \(its last layer: dense 16\), but digits has 10 classes; end it with dense\(10\)"),
        (serial(conv(10, 3)), r"the network ends in shape 6×6×10 \(its last layer: conv 10 3×3\), but digits has 10"),
    ]  # fmt: skip
    for net, message in cases:
        with pytest.raises(ValueError, match=message):
            make(net)
    with pytest.raises(ValueError, match="crop"):
        make(augment=crop(20))
    with pytest.raises(TypeError, match=r"net is .*dense.*, not a network; build one with serial\(…\)"):
        make(dense)


def test_more_workers_than_devices_say_how_to_have_them(make):
    with pytest.raises(
        ValueError, match="5 workers were asked for, but JAX sees 4 cpu devices: set the environment"
    ):
        make(workers=5).fit()
    with pytest.raises(ValueError, match="emulate has 3 speeds, but there are 2 workers; give one for each"):
        make(workers=2, emulate=emulate([1, 0.5, 0.5])).fit()


# --- folders -------------------------------------------------------------------------------------------


def test_a_folder_with_another_run_names_each_difference(make, tmp_path):
    make(folder=tmp_path).save()
    with pytest.raises(
        ValueError,
        match=r"holds another run: net\.parts\[0\]\.bias was True, is False; batch was 32, is 16; seed was 0, is 1\. "
        r"Give the same settings to go on with it, read it with Run\.load\(\), or use another folder=",
    ):
        make(serial(dense(10, bias=False)), folder=tmp_path, batch=16, seed=1)


def test_differences_in_depth_are_found(make, tmp_path):
    make(folder=tmp_path).save()
    for settings, message in (
        ({"optimizer": optim.sgd(0.1)}, "optimizer.schedule.lr was 0.01, is 0.1"),
        ({"net": serial(relu(), dense(10))}, "the number of net.parts was 1, is 2"),
        ({"loss": "squared_error"}, "loss.name was 'cross_entropy', is 'squared_error'"),
        ({"mode": "accumulate"}, "mode was 'local', is 'accumulate'"),
        ({"data": blank(classes=10, shape=(8, 8, 1))}, "data.name was 'digits', is 'noise'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(folder=tmp_path, **settings)
    # These may change when a run is gone on with.
    run = make(folder=tmp_path, epochs=7, fetch="every(3)", exchange="ring", workers=2, evaluate_every=2)
    assert run.epochs == 7


def test_damaged_settings_and_checkpoints_say_what_to_do(make, tmp_path):
    run = make(folder=tmp_path, epochs=1).fit()
    path, config = tmp_path / "checkpoint.safetensors", tmp_path / "config.json"
    content, settings = path.read_bytes(), config.read_bytes()
    config.write_bytes(settings[:40])
    with pytest.raises(
        ValueError, match=r"config\.json is damaged .*; restore it, or give the run another folder="
    ):
        make(folder=tmp_path)
    config.write_bytes(settings)
    path.write_bytes(content[:-5])
    again = make(folder=tmp_path)
    with pytest.raises(
        ValueError, match=r"checkpoint\.safetensors is damaged .*; delete it to start anew: the record stays"
    ):
        again.fit()
    path.write_bytes(content[:4])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        make(folder=tmp_path)
    path.unlink()
    anew = make(folder=tmp_path, epochs=1)
    assert [row["epoch"] for row in anew.history] == [1]
    assert plain_rows(anew.fit()) == plain_rows(run)


def test_a_checkpoint_of_another_network_is_refused(make, tmp_path):
    make(folder=tmp_path / "a", epochs=1).fit()
    make(small_net(), folder=tmp_path / "b").save()
    (tmp_path / "b" / "checkpoint.safetensors").write_bytes(
        (tmp_path / "a" / "checkpoint.safetensors").read_bytes()
    )
    for ask in (lambda run: run.fit(), lambda run: run.evaluate()):
        with pytest.raises(
            ValueError, match=r"belongs to another network or optimizer: it lacks .*; use the network"
        ):
            ask(make(small_net(), folder=tmp_path / "b"))


def test_a_checkpoint_of_another_format_is_refused(make, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    make(folder=tmp_path).save()
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match="has format 99, this cnnkit reads format 1; read it with the version that"
    ):
        make(folder=tmp_path)


def test_another_version_may_go_on_with_the_same_format(make, tmp_path, monkeypatch):
    make(folder=tmp_path, epochs=1).fit()
    monkeypatch.setattr(cnnkit, "__version__", "99.0")
    run = make(folder=tmp_path).fit()
    assert run.history[-1]["epoch"] == 2
    assert json.loads((tmp_path / "config.json").read_text())["cnnkit"] == "99.0"


def test_one_run_at_a_time_in_a_folder(make, tmp_path):
    inner = []

    def at(run):
        with pytest.raises(
            RuntimeError, match=rf"is in use by another run \(process {os.getpid()}\); wait for it"
        ):
            make(folder=tmp_path).fit()
        inner.append(1)

    make(folder=tmp_path, watch=Quiet(at), epochs=1).fit()
    assert inner
    make(folder=tmp_path).fit()
    code = f"""
from cnnkit.data import load
from cnnkit.layers import dense, serial
from cnnkit.train.report import Silent
from cnnkit.train.run import Run
import time
class Slow(Silent):
    def begin(self, run):
        print("begun", flush=True)
        time.sleep(60)
Run(serial(dense(10)), load("digits").take(train=203, test=101), batch=32, epochs=9, folder={str(tmp_path)!r}, watch=Slow()).fit()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "begun\n"
            with pytest.raises(RuntimeError, match=rf"is in use by another run \(process {other.pid}\)"):
                make(folder=tmp_path, epochs=9).fit()
        finally:
            other.kill()
    assert make(folder=tmp_path, epochs=3).fit().epoch == 3


# --- disks ---------------------------------------------------------------------------------------------


@pytest.fixture
def full():
    """A full disk: files may not grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The cache of compiled programs would warn that it cannot write either.
    jax.config.update("jax_enable_compilation_cache", False)
    yield lambda size: resource.setrlimit(
        resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1])
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    jax.config.update("jax_enable_compilation_cache", True)


def test_a_full_disk_at_the_start_is_said_before_any_work(make, tmp_path, full):
    run = make(folder=tmp_path)
    full(100)
    with pytest.raises(
        OSError, match=r"the run's folder .* cannot be written \(File too large\); free space, change its"
    ):
        run.fit()
    full(None)
    assert run.phase == "failed"
    assert run.clocks.seconds["compile"] == 0
    run.fit()


def test_a_read_only_folder_is_said_before_any_work(make, tmp_path, monkeypatch):
    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    run = make(folder=tmp_path)
    monkeypatch.setattr("pathlib.Path.open", read_only)
    with pytest.raises(
        OSError, match=r"cannot be written \(Read-only file system\); free space, change its permissions"
    ):
        run.fit()
    monkeypatch.undo()
    run.fit()


def test_a_disk_that_fills_during_a_checkpoint_loses_nothing(make, tmp_path, full):
    whole = make().fit()
    run = make(folder=tmp_path, epochs=1).fit()
    old = (tmp_path / "checkpoint.safetensors").read_bytes()
    run.watch.at = lambda run: full(len(old) - 100)
    with pytest.raises(
        OSError,
        match="the one before it is whole, and the training is still in memory: free space and call fit",
    ):
        run.fit(2)
    assert (run.epoch, run.phase) == (2, "failed")
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == old
    full(None)
    run.watch.at = lambda run: None
    assert run.fit().phase == "done"
    for now in (run, make(folder=tmp_path)):
        assert plain_rows(now) == plain_rows(whole)
        np.testing.assert_array_equal(flat(now.params), flat(whole.params))


def test_a_disk_that_fills_during_the_record_loses_nothing(make, tmp_path, full, monkeypatch):
    monkeypatch.setattr(loop, "TICK", 1e-4)
    whole = make(epochs=3).fit()
    run = make(folder=tmp_path, epochs=3)
    run.watch.at = lambda run: run.epoch == 1 and full((tmp_path / "record.jsonl").stat().st_size + 20)
    with pytest.raises(
        OSError,
        match=r"the record .* cannot be written \(File too large\).*nothing that was recorded before is lost",
    ):
        run.fit()
    full(None)
    run.watch.at = lambda run: None
    run.fit()
    for now in (run, make(folder=tmp_path, epochs=3)):
        assert plain_rows(now) == plain_rows(whole)
