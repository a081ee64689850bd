"""The files under benchmarks/results: what a row says, and what is written around it."""

import json
import re

import pytest

from benchmarks import results


def test_a_row_holds_median_count_deviation_and_a_ratio_above_one_when_ahead():
    fast = results.row("lenet", "images_per_s", [90, 110, 100], "1/s", peer="x", peer_values=[50, 50, 80])
    assert (fast["value"], fast["n"], fast["spread"], fast["peer_value"], fast["ratio"]) == (
        100,
        3,
        10,
        50,
        2,
    )
    small = results.row("lenet", "mb", [100], "MB", peer="x", peer_values=[50], less_is_better=True)
    assert (small["ratio"], small["spread"]) == (0.5, 0)
    with pytest.raises(ValueError, match="lenet mb: at least one value is needed"):
        results.row("lenet", "mb", [], "MB")


def test_turns_alternate_so_that_drift_hits_both_alike():
    seen = []
    values = results.in_turn({"a": lambda: seen.append("a") or 1, "b": lambda: seen.append("b") or 2}, 3)
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert values == {"a": [1, 1, 1], "b": [2, 2, 2]}


def test_a_file_names_machine_versions_commit_and_command(tmp_path):
    rows = [results.row("lenet", "mb", [1.0], "MB")]
    path = results.write("some", rows, packages=("pytest", "no-such-package"), folder=tmp_path)
    made = json.loads(path.read_text())
    assert made == results.read("some", tmp_path)
    assert list(made) == ["name", "machine", "versions", "commit", "command", "rows"]
    assert made["rows"] == rows
    assert made["versions"]["pytest"] == pytest.__version__
    assert "no-such-package" not in made["versions"]
    assert re.search(r"\d+ cores, \d+ GB memory", made["machine"])
    assert re.fullmatch(r"[0-9a-f]{12}\+?|unknown", made["commit"])
    assert made["command"].startswith("python ")
