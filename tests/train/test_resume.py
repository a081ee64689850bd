"""A run that was killed anywhere goes on to the numbers of one that never was, bit for bit."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cnnkit.augment import chain, flip, noise, rotate
from cnnkit.record import checkpoint, folder, rows
from cnnkit.train import loop, optim
from cnnkit.train.run import Run
from tests.train.conftest import Quiet, flat, plain_rows, small_net

# Dropout, statistics, augmentation, momentum, stages: all that a resumed run might lose.
SETTINGS = {
    "batch": 32,
    "epochs": 40,
    "optimizer": optim.sgd(optim.stages((0.1, 0.9, 15), (0.05, 0.5, 10), (0.02, 15)), momentum=0.8),
    "augment": chain(flip(), rotate(10), noise(0.05)),
}


class Killed(BaseException):
    """What a process that is killed would not live to see."""


@pytest.fixture(scope="module")
def whole(digits):
    return Run(small_net(), digits, watch=Quiet(), **SETTINGS).fit()


@pytest.mark.long
@pytest.mark.slow
def test_ten_times_killed_and_gone_on_with(tmp_path, whole, digits):
    random.seed(int(os.environ.get("CNNKIT_TEST_SEED", "0")))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(Path(__file__).with_name("driver.py")), str(tmp_path)]
    begun = []
    for life in range(11):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            line = process.stdout.readline()
            assert line.startswith("at "), line
            begun.append(float(line.split()[1]))
            if life < 10:
                time.sleep(random.uniform(0.0, 0.25))
                process.kill()
            else:
                assert process.communicate(timeout=120)[0] == "done\n"
    assert begun == sorted(begun)
    assert 0 < begun[-1] < 40
    run = Run(small_net(), digits, folder=tmp_path, watch=Quiet(), **SETTINGS)
    assert run.epoch == 40
    assert plain_rows(run) == plain_rows(whole)
    np.testing.assert_array_equal(flat(run.model), flat((whole.params, whole.state, ())))
    last = checkpoint.read_bytes(tmp_path)
    whole.save(tmp_path / "whole")
    assert arrays(last) == arrays(checkpoint.read_bytes(tmp_path / "whole"))
    assert not list(tmp_path.glob("*.part"))


def arrays(content):
    """A checkpoint's arrays as bytes, without what is said of them."""
    return content[8 + int.from_bytes(content[:8], "little") :]


def test_every_write_may_be_the_last(tmp_path, digits, monkeypatch):
    """A crash before, within and after each step of writing, tried one by one in this process."""
    settings = SETTINGS | {"epochs": 1, "checkpoint_every": 0, "watch": Quiet()}
    monkeypatch.setattr(loop, "TICK", 1e-4)
    whole = Run(small_net(), digits, **settings).fit()
    steps, at = [], [-1]

    def crash_at(module, name):
        real = getattr(module.os, name)

        def step(*args):
            steps.append(name)
            if len(steps) == at[0]:
                raise Killed
            done = real(*args)
            if len(steps) == at[0] - 0.5:
                raise Killed
            return done

        monkeypatch.setattr(module.os, name, step)

    crash_at(folder, "fsync")
    crash_at(folder, "replace")
    assert folder.os is rows.os
    Run(small_net(), digits, folder=tmp_path / "count", **settings).fit()
    number = len(steps)
    assert number > 18  # settings, record, and a checkpoint after each of 7 mini-batches
    for when in [n + half for n in range(1, number + 1, 5) for half in (0, 0.5)]:
        here = tmp_path / str(when)
        steps.clear()
        at[0] = when
        with pytest.raises(Killed):
            Run(small_net(), digits, folder=here, **settings).fit()
        at[0] = -1
        again = Run(small_net(), digits, folder=here, **settings).fit()
        assert plain_rows(again) == plain_rows(whole)
        np.testing.assert_array_equal(flat(again.params), flat(whole.params))


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_row_torn_by_a_crash_is_written_again(tmp_path, digits, cut):
    settings = SETTINGS | {"epochs": 2, "watch": Quiet()}
    whole = Run(small_net(), digits, **settings).fit()
    Run(small_net(), digits, folder=tmp_path, **settings | {"epochs": 1}).fit()
    path = tmp_path / "record.jsonl"
    (tmp_path / "checkpoint.safetensors").unlink()
    path.write_bytes(path.read_bytes()[:cut])
    again = Run(small_net(), digits, folder=tmp_path, **settings).fit()
    assert plain_rows(again) == plain_rows(whole)
    assert [row["epoch"] for row in Run(small_net(), digits, folder=tmp_path, **settings).history] == [1, 2]
