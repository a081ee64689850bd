"""The files under benchmarks/results: what a row says, and what is written around it."""

import argparse
import json
import re
from concurrent.futures import ThreadPoolExecutor

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


def test_rows_that_are_kept_say_how_they_were_measured(tmp_path, monkeypatch):
    made = lambda case: [results.row(case, "mb", [1.0], "MB")]
    monkeypatch.setattr(results, "machine", lambda: "one")
    results.update("some", made("a"), folder=tmp_path)
    monkeypatch.setattr(results, "machine", lambda: "two")
    results.update("some", made("b"), folder=tmp_path)
    monkeypatch.setattr(results, "machine", lambda: "three")
    results.update("some", [*made("b"), *made("c")], folder=tmp_path)
    file = results.read("some", tmp_path)
    where = {row["case"]: results.measured(file, row)["machine"] for row in file["rows"]}
    assert where == {"a": "one", "b": "three", "c": "three"}
    assert list(file["rows"][0]["measured"]) == ["machine", "versions", "commit", "command"]
    # Back where it began, the file's head speaks for the row again.
    monkeypatch.setattr(results, "machine", lambda: "one")
    results.update("some", [*made("b"), *made("c")], folder=tmp_path)
    file = results.read("some", tmp_path)
    assert [row["case"] for row in file["rows"] if "measured" in row] == []
    assert file["machine"] == "one"


def test_what_is_measured_side_by_side_is_all_kept(tmp_path):
    work = lambda i: results.update("some", [results.row(f"case {i}", "mb", [i], "MB")], folder=tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(24)))
    kept = {row["case"]: row["value"] for row in results.read("some", tmp_path)["rows"]}
    assert kept == {f"case {i}": i for i in range(24)}


def test_numbers_with_commas_are_told_apart_from_what_is_none(capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--speeds", type=results.numbers(float), default=[])
    assert parser.parse_args(["--speeds", "1,0.5"]).speeds == [1.0, 0.5]
    assert parser.parse_args([]).speeds == []
    with pytest.raises(SystemExit):
        parser.parse_args(["--speeds", "1,half"])
    assert (
        "argument --speeds: '1,half' is not a list of numbers with commas between" in capsys.readouterr().err
    )
