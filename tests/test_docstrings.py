"""What docstrings show is what comes out."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import cnnkit

EXAMPLES = {
    name: source.count(">>> ")
    for name, source in (
        (module.name, Path(module.module_finder.find_spec(module.name).origin).read_text("utf-8"))
        for module in pkgutil.walk_packages(cnnkit.__path__, "cnnkit.")
    )
    if ">>> " in source
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_are_true(name):
    module, finder, runner = importlib.import_module(name), doctest.DocTestFinder(), doctest.DocTestRunner()
    tests = finder.find(module, name)
    for value in vars(module).values():  # a decorated function is not seen by itself
        inner = getattr(value, "__wrapped__", None)
        if getattr(inner, "__module__", "") == name:
            tests += finder.find(inner, module=False, globs=dict(vars(module)))
    for test in {test.docstring: test for test in tests}.values():
        runner.run(test)
    assert (runner.failures, runner.tries) == (0, EXAMPLES[name])
