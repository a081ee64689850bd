"""The names that the room gives: each is there, whatever was imported before, and none is a module by mistake."""

import importlib
import pkgutil
from pathlib import Path

import pytest

from cnnkit import notebook


def test_every_name_is_what_its_home_has_also_after_all_modules_were_imported():
    for module in pkgutil.iter_modules(notebook.__path__):
        importlib.import_module(f"cnnkit.notebook.{module.name}")
    for name, home in notebook._HOMES.items():
        made = getattr(notebook, name)
        assert made is getattr(importlib.import_module(f"cnnkit.notebook.{home}"), name)
        assert callable(made)
    assert notebook.look.confusion.__module__ == "cnnkit.notebook.look"
    assert set(notebook.__all__) == {*notebook._HOMES, "look"}
    assert set(notebook.__all__) <= set(dir(notebook))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'cnnkit.notebook' has no attribute 'pannel'"):
        getattr(notebook, "pannel")  # noqa: B009


def test_no_module_clears_an_output_or_opens_a_figure_in_pyplot():
    for module in pkgutil.iter_modules(notebook.__path__):
        text = Path(notebook.__path__[0], f"{module.name}.py").read_text()
        assert "clear_output" not in text, module.name
        assert "matplotlib.pyplot" not in text, module.name
