"""What becomes of each of Run's options: whether it identifies a run, and whether all processes must have it alike."""

import inspect
import re

import pytest

from cnnkit import augment
from cnnkit.layers import dense, relu, serial
from cnnkit.parallel.emulate import emulate
from cnnkit.record.folder import read_config, write_config
from cnnkit.train import optim, settings
from cnnkit.train.report import Silent
from cnnkit.train.run import Run
from cnnkit.train.views import Views


def net(width=8):
    return serial(dense(width), relu(), dense(10))


# Another value than the one left out. Which run it is …
IDENTIFY = {
    "net": net(9), "data": None, "batch": 64, "seed": 1, "optimizer": optim.sgd(0.1), "augment": augment.flip(),
    "normalize": False, "loss": "squared_error", "smoothing": 0.1, "dtype": "bfloat16", "freeze": [(1, 1)],
    "mode": "accumulate", "delay": 1, "payload": "int8", "momentum": "average", "outer": "nesterov", "outer_lr": 0.5,
    "outer_momentum": 0.5,
}  # fmt: skip
# … what may change when it is gone on with, but not between the processes of a job …
AGREE = {
    "epochs": 3, "workers": 2, "fetch": 2, "exchange": "ring", "emulate": emulate([1.0, 0.5]), "judge": (),
    "views": Views(), "evaluate_every": 2, "folder": "kept",
}  # fmt: skip
# … and what each process may have as it likes: a wish for a checkpoint travels to all, and one worker alone
# trains whole epochs.
FREE = {"checkpoint_every": 5.0, "dispatch": "epoch", "watch": Silent()}


def config(digits, **changes):
    return Run(**({"net": net(), "data": digits} | changes)).config


def test_every_option_of_a_run_is_accounted_for():
    assert {*IDENTIFY, *AGREE, *FREE} == set(inspect.signature(Run).parameters)


@pytest.mark.parametrize("option", [*IDENTIFY, *AGREE, *FREE])
def test_what_an_option_changes(digits, tmp_path, option):
    value = {"data": digits.take(test=50), "folder": tmp_path}.get(option) or (IDENTIFY | AGREE | FREE)[
        option
    ]
    was, now = config(digits), config(digits, **{option: value})
    agree = all(was[key] == now[key] for key in settings.TOGETHER)
    assert (len(settings.differences(was, now)), agree) == (int(option in IDENTIFY), option in FREE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"augment": augment.stages((augment.flip(), 1), augment.noise(0.1))},
         {"augment": augment.stages((augment.flip(), 2), augment.noise(0.1))}),
        ({"optimizer": optim.sgd(optim.stages((0.1, 1), (0.05, 1)))},
         {"optimizer": optim.sgd(optim.stages((0.1, 1), (0.02, 1)))}),
        ({"freeze": [(1, 1)]}, {"freeze": [(2, 1)]}),
    ],
    ids=["stages", "rates", "freeze"],
)  # fmt: skip
def test_what_changes_on_the_way_identifies_a_run(digits, one, other):
    assert len(settings.differences(config(digits, **one), config(digits, **other))) == 1


def test_a_folder_is_not_gone_on_with_by_another_freeze(digits, tmp_path):
    Run(net(), digits, folder=tmp_path, freeze=[(1, 1)]).save()
    with pytest.raises(
        ValueError, match=re.escape("holds another run: freeze was [[1, 1]], is []. Give the same")
    ):
        Run(net(), digits, folder=tmp_path)
    # A folder from before there was such an option.
    older = read_config(tmp_path)
    del older["freeze"]
    write_config(tmp_path, older)
    assert Run(net(), digits, folder=tmp_path).config["freeze"] == []
