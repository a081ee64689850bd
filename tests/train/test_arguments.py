"""What people give Run: text that stands for an object, and mistakes that are told with what is expected."""

import inspect
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cnnkit as ck
from cnnkit.train import arguments
from cnnkit.train.optim import Optimizer

NET = ck.serial(ck.dense(10))


@pytest.fixture(scope="module")
def digits():
    return ck.load("digits")


def test_text_stands_for_what_python_writes(digits):
    typed = ck.Run(
        "tiny",
        "digits",
        optimizer="sgd(one_cycle(0.2), momentum=0.8)",
        augment="rotate(5), translate(0.5)",
        views="views(mirror=False, shift=2)",
        workers=2,
        emulate=[1, 0.5],
    )
    written = ck.Run(
        ck.nets.tiny(10),
        digits,
        optimizer=ck.optim.sgd(ck.optim.one_cycle(0.2), momentum=0.8),
        augment=ck.augment.chain(ck.augment.rotate(5), ck.augment.translate(0.5)),
        views=ck.train.Views(mirror=False, shift=2),
        workers=2,
        emulate=ck.workers.emulate([1, 0.5]),
    )
    assert typed.config == written.config
    assert typed.config["net_name"] == "tiny"
    assert ck.Run(NET, digits).config["net_name"] is None


WRONG = [
    ({"optimizer": 0.1}, r"optimizer is 0\.1, .* write optimizer='sgd\(0\.1\)', or optim\.sgd\(0\.1\)"),
    ({"optimizer": ck.optim.sgd}, r"optimizer is the function sgd, .* call it, as optim\.sgd\(0\.1\)"),
    ({"optimizer": ck.optim.cosine(0.1)}, r"optimizer is a Schedule, .* as optim\.sgd\(optim\.cosine\(…\)\)"),
    ({"optimizer": optax.sgd(0.1)}, r"optimizer is a Grad.*: optax has the learning rate inside.* Wrap what makes it"),
    ({"augment": ck.augment.flip}, r"augment is the function flip, .* call it, as augment\.flip\(…\)"),
    ({"augment": [ck.augment.flip()]}, r"augment is a list, .* one after another with augment\.chain\("),
    ({"augment": 3}, r"augment is 3, .* or its text, such as 'flip\(\), crop\(32, pad=4\)'"),
    ({"views": True}, r"views is True; it must be Views\(…\) or text, such as 'views\("),
    ({"emulate": 0.5}, r"emulate is 0\.5; it must be the speed of each worker, such as \[1, 0\.5\]"),
    ({"fetch": ck.fetch.balanced}, r"fetch is the class balanced; it must be a policy, such as fetch\.every\(4\)"),
    ({"freeze": 5}, r"freeze is 5; it must be \(epoch, layers\) pairs"),
    ({"freeze": [5, 1]}, r"freeze is a list; it must be \(epoch, layers\) pairs"),
    ({"folder": 7}, r"folder is 7; it must be a path"),
    ({"normalize": "no"}, r"normalize is 'no'; it must be True or False"),
    ({"smoothing": "0.1"}, r"smoothing is '0\.1'; it must be a number from 0 to below 1"),
    ({"outer_lr": "0.1"}, r"outer_lr is '0\.1'; it must be a number above 0"),
    ({"judge": 3}, r"judge is 3; it must be a part of the data or a list"),
    ({"watch": print}, r"watch is the function print, which has no begin\(\)"),
    ({"epoch": 3}, r"Run\(\) got an unexpected keyword argument 'epoch': did you mean 'epochs'\?"),
    ({"lr": 0.1}, r"unexpected keyword argument 'lr': the rate goes with the optimizer, as optimizer='sgd\(0\.1\)'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), WRONG, ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_a_wrong_argument_is_named_with_what_is_expected(digits, given, told):
    with pytest.raises(TypeError, match=told):
        ck.Run(NET, digits, **given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"optimizer": "adam"}, "unknown optimizer 'adam': did you mean 'adamw'"),
        ({"optimizer": "sgd(momentun=0.9)"}, r"sgd\(\) got an unexpected .*'momentun': did you mean 'momentum'\?"),
        ({"optimizer": "sgd(cosin(0.1))"}, "unknown name within the optimizer 'cosin': did you mean 'cosine'"),
        ({"augment": "flp()"}, "unknown augmentation 'flp': did you mean 'flip'"),
        ({"views": "mirror"}, r"views is 'mirror'; it is written with its settings, as views\(mirror=True"),
        ({"views": "views(mirrow=1)"}, r"unexpected keyword argument 'mirrow': did you mean 'mirror'\?"),
        ({"loss": optax.l2_loss}, "unknown loss the function l2_loss: .*Known: cross_entropy, squared_error"),
        ({"mode": ["local"]}, "unknown mode a list: .*Known: accumulate, local"),
    ],
)  # fmt: skip
def test_text_that_stands_for_nothing_is_told(digits, given, told):
    with pytest.raises(ValueError, match=told):
        ck.Run(NET, digits, **given)


class Own:
    """Neither text, number, path nor anything of cnnkit."""


def test_no_argument_ends_in_an_error_that_does_not_name_it(digits):
    names = set(inspect.signature(ck.Run).parameters) - {"net", "data"}
    for name in sorted(names - {"augment", "optimizer", "views"}):
        for value in (Own(), [Own()]):
            if name == "watch" and isinstance(value, Own):
                value.begin = value.tick = value.row = print  # all but end
            with pytest.raises((TypeError, ValueError), match=f"{name.split('_')[0]}|split"):
                ck.Run(NET, digits, **{name: value})


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (ck.nets.lenet, r"net is the function lenet, not a network; call it, as nets\.lenet\(10\)"),
        (SimpleNamespace(init=1, apply=1), "net is a SimpleNamespace, not a network; build one with serial"),
        ([ck.dense(10)], r"net is a list, not a network; build one with serial\(…\)"),
        (np.zeros(3), "net is a ndarray, not a network"),
    ],
)
def test_what_is_no_network_is_told(digits, net, told):
    with pytest.raises(TypeError, match=told):
        ck.Run(net, digits)


def test_what_is_no_data_set_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    cases = [
        ((np.zeros(1), np.zeros(1)), TypeError, r"data is a tuple, not a data set; .* your arrays by from_arrays\("),
        ("mnits", ValueError, "unknown data set 'mnits': did you mean 'mnist'.*; nor is there a folder of that name"),
        ("/nonexistent", FileNotFoundError, "/nonexistent: no such folder; data is one of digits, mnist,"),
        (tmp_path / "gone", FileNotFoundError, "gone: no such folder"),
        (tmp_path / "file", NotADirectoryError, "file is a file; data is the name of a set, or a folder"),
    ]  # fmt: skip
    for given, error, told in cases:
        with pytest.raises(error, match=told):
            arguments.dataset(given)
    with pytest.raises(ValueError, match="unknown network 'lennet': did you mean 'lenet'"):
        arguments.network("lennet", 10)


def test_the_way_to_wrap_optax_that_the_error_tells_works():
    with pytest.raises(TypeError, match=r"Wrap what makes it: ") as told:
        arguments.optimizer(optax.sgd(0.1))
    code = str(told.value).partition("Wrap what makes it: ")[2]
    mine = eval(code, {"optim": ck.optim, "optax": optax})
    assert isinstance(mine, Optimizer)
    weights = {"w": jnp.ones(2)}
    state = mine.init(weights)
    first, state = mine.update({"w": jnp.ones(2)}, state, weights, 0.1, 0.5)
    second, _ = mine.update({"w": jnp.ones(2)}, state, first, 0.1, 0.5)
    assert np.allclose(first["w"], 0.9)
    assert np.allclose(second["w"], 0.9 - 0.1 * 1.5)


def test_the_rate_of_an_optimizer_is_given_once():
    for text in ("sgd(0.1)", "sgd(lr=0.1)"):
        with pytest.raises(ValueError, match=r"the learning rate is given twice, within sgd\(…\) and apart"):
            arguments.optimizer(text, "0.2")
