"""`make start`: what it trains is accurate, and the Makefile says what it can do."""

import shutil
import subprocess

import pytest

from benchmarks import start
from cnnkit.command import main
from cnnkit.record.rows import Record

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def test_make_start_ends_above_98_percent(tmp_path):
    assert main([*start.command(), "--folder", str(tmp_path / "run")]) == 0
    history = Record(tmp_path / "run").epochs()
    assert history[-1]["test_accuracy"] >= 0.98
    assert history[-1]["epoch"] == 24


def test_make_tells_its_targets():
    told = subprocess.run(["make", "-C", start.ROOT, "-s"], capture_output=True, text=True).stdout
    assert [line.split()[1] for line in told.splitlines()] == ["start", "test", "lab", "results", "clean"]


def test_an_unfit_python_is_an_error_that_says_what_to_do(tmp_path):
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "-C", start.ROOT, "start", f"PYTHON={old}", f"VENV={tmp_path}/venv"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert (
        f"Python 3.11, 3.12 or 3.13 is needed, found: {old}; say which: make PYTHON=python3.11" in done.stderr
    )
    assert not (tmp_path / "venv").exists()
