"""Names that are misspelt: the nearest known one is suggested, wherever people write names."""

import pytest

import cnnkit as ck
from cnnkit.names import brief, hinting


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda: ck.optim.adam, "module 'cnnkit.train.optim' has no attribute 'adam'; did you mean 'adamw'?"),
        (lambda: ck.nets.resnet50, "module 'cnnkit.nets' has no attribute 'resnet50'; did you mean 'resnet18'?"),
        (lambda: ck.augment.fliip, "module 'cnnkit.augment' has no attribute 'fliip'; did you mean 'flip'?"),
        (lambda: ck.layers.Dense, "module 'cnnkit.layers' has no attribute 'Dense'; did you mean 'dense'?"),
        (lambda: ck.losses.crossentropy, "'crossentropy'; did you mean 'cross_entropy'?"),
        (lambda: ck.plots.curve_of, "module 'cnnkit.notebook.plots' has no attribute 'curve_of'; did you mean 'curves'?"),
        (lambda: ck.nets.zebra, "module 'cnnkit.nets' has no attribute 'zebra'"),
    ],
)  # fmt: skip
def test_a_module_suggests_the_nearest_of_its_names(asked, told):
    with pytest.raises(AttributeError) as error:
        asked()
    assert str(error.value).endswith(told)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ck.optim.sgd(momentun=0.9), "sgd() got an unexpected keyword argument 'momentun': did you mean 'momentum'?"),
        (lambda: ck.optim.one_cycle(0.1, raise_=1), "'raise_': did you mean 'rise'?"),
        (lambda: ck.optim.adamw(banana=1), "'banana': it takes lr, b1, b2, weight_decay"),
    ],
)  # fmt: skip
def test_a_function_suggests_the_nearest_of_its_keywords(call, told):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).endswith(told)


def test_a_keyword_that_belongs_elsewhere_says_where():
    @hinting(size="say it by conv")
    def pool(window, *, stride=1):
        return window, stride

    assert pool(2, stride=3) == (2, 3)
    assert pool.__name__ == "pool"
    with pytest.raises(
        TypeError, match="pool\\(\\) got an unexpected keyword argument 'size': say it by conv"
    ):
        pool(2, size=3)


def test_values_are_told_in_few_words():
    assert brief(ck.dense(3)) == "a Layer"
    assert brief("x" * 200) == "a str"
    assert brief(lambda: 0) == "the function <lambda>"
    assert brief(ck.Run) == "the class Run"
    assert brief(None) == "None"
