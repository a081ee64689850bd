"""Runs side by side: the table's numbers, the settings that differ, the chooser."""

import json
import re

import numpy as np
import pytest

from cnnkit.notebook.comparison import chooser, compare, runs_in
from cnnkit.record.rows import Record


def made(folder, accuracies, lr=0.1, seed=0, seconds=1.0):
    """A folder as a run leaves it."""
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "batch": 32,
        "optimizer": {"name": "sgd", "lr": lr},
        "net": {"parts": [{"kind": "conv"}]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    record = Record(folder)
    for epoch, accuracy in enumerate(accuracies, 1):
        row = {"kind": "epoch", "epoch": epoch, "examples": 100 * epoch, "train_total": seconds * epoch}
        record.append(
            row | {"train_loss": 1 - accuracy, "train_accuracy": accuracy, "test_accuracy": accuracy}
        )
    return folder


def test_the_table_has_last_epochs_with_deviations_and_what_differs(tmp_path):
    seeds = [made(tmp_path / f"a{i}", [0.99, a], seed=i, seconds=2.0) for i, a in enumerate((0.5, 0.7))]
    other = made(tmp_path / "b", [0.4, 0.5, 0.6], lr=0.2)
    shown = compare({"slow": seeds, "fast": other})
    deviation = 100 * np.std([0.5, 0.7], ddof=1)
    assert shown.rows() == [
        {
            "run": "slow",
            "n": "2",
            "optimizer.lr": "0.1",
            "epochs": "2",
            "test accuracy": f"60.00 ± {deviation:.2f} %",
            "training loss": "0.4000 ± 0.1414",
            "training": "4.0 ± 0.0 s",
        },
        {
            "run": "fast",
            "n": "1",
            "optimizer.lr": "0.2",
            "epochs": "3",
            "test accuracy": "60.00 %",
            "training loss": "0.4000",
            "training": "3.0 s",
        },
    ]
    head = str(shown).splitlines()[0]
    assert re.split(r"  +", head) == [
        "run",
        "n",
        "optimizer.lr",
        "epochs",
        "test accuracy",
        "training loss",
        "training",
    ]
    lines = shown.figure().axes[0].lines
    np.testing.assert_allclose(lines[0].get_ydata(), [99, 60])
    data, _ = shown._repr_mimebundle_()
    assert "optimizer.lr" in data["text/html"]
    assert 'alt="curves of the runs"' in data["text/html"]
    assert data["image/png"].startswith(b"\x89PNG")


def test_a_folder_of_runs_is_compared_run_by_run(tmp_path):
    made(tmp_path / "x" / "one", [0.5])
    made(tmp_path / "two", [0.6, 0.7])
    assert [row["run"] for row in compare(tmp_path).rows()] == ["two", "x/one"]
    assert [row["epochs"] for row in compare(tmp_path).rows()] == ["2", "1"]


def test_seeds_of_unequal_length_say_so(tmp_path):
    runs = [made(tmp_path / "a", [0.5]), made(tmp_path / "b", [0.6, 0.7])]
    assert compare({"both": runs}).rows()[0]["epochs"] == "1 to 2"


def test_runs_that_have_recorded_nothing_are_a_table_alone(tmp_path):
    folder = made(tmp_path / "a", [])
    Record(folder).append({"kind": "event", "event": "diverged"})
    shown = compare({"new": folder})
    assert shown.rows()[0]["epochs"] == "0"
    assert set(shown._repr_mimebundle_()[0]) == {"text/plain", "text/html"}


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run lies under .*; runs are folders that Run"):
        runs_in(tmp_path)


def test_the_chooser_compares_what_is_chosen_and_has_a_form_without_widgets(tmp_path):
    made(tmp_path / "one", [0.5])
    made(tmp_path / "two", [0.6], lr=0.3)
    shown = chooser(tmp_path)
    assert shown.list.value == ("one", "two")
    assert "optimizer.lr" in shown.below.value
    shown.list.value = ("two",)
    assert "60.00 %" in shown.below.value
    assert "50.00 %" not in shown.below.value
    shown.x.value, shown.y.value = "seconds", "error"
    ax = shown.comparison().figure().axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("seconds of training", "error (%)")
    data, _ = shown._repr_mimebundle_()
    assert "two" in data["text/plain"]
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == shown.box.model_id
    shown.list.value = ()
    assert shown.below.value == "choose some runs"


def test_a_run_with_damaged_settings_is_compared_and_told(tmp_path):
    runs = [made(tmp_path / name, [0.5]) for name in "ab"]
    (tmp_path / "b" / "config.json").write_text("{")
    whole, damaged = compare(runs).rows()
    assert (whole["settings"], damaged["settings"]) == ("–", "damaged")
    assert damaged["test accuracy"] == "50.00 %"
