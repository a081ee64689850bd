"""The examples in the docstrings of the parallel room."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["balance", "cost", "emulate", "exchange", "fetch", "policy", "traffic", "workers"]
)
def test_examples_are_true(name):
    failed, tried = doctest.testmod(importlib.import_module(f"cnnkit.parallel.{name}"))
    assert tried > 0
    assert failed == 0
