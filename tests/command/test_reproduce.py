"""`cnnkit reproduce`: experiments found, run, and misspelt."""

import pytest

from cnnkit.command import main, reproduce

EXPERIMENT = """
from cnnkit.experiments import Experiment
from cnnkit.experiments.base import row
from cnnkit.notebook import style

EXPERIMENT = Experiment(
    "toy", "a toy", "section 0", {"smoke": {"n": 1}, "small": {"n": 2}},
    lambda settings, folder: [row("case", "figure", [float(settings["n"])], "s")],
    lambda rows: style.figure()[0],
)
"""


def test_reproduce_is_listed_once_there_are_experiments(here, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "available", list)
    with pytest.raises(SystemExit):
        main(["reproduce", "toy"])
    assert "invalid choice: 'reproduce'" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(here)
    (here / "toy_experiment.py").write_text(EXPERIMENT)
    experiments = {"toy": "toy_experiment", "later": "cnnkit.experiments.not_yet"}
    monkeypatch.setattr("cnnkit.experiments.EXPERIMENTS", experiments)
    monkeypatch.setattr("cnnkit.experiments.base.EXPERIMENTS", experiments)
    assert reproduce.available() == ["toy"]
    assert main(["reproduce", "toy", "n=5", "--folder", "out"]) == 0
    assert "5 ± 0 s" in capsys.readouterr().out
    assert {path.name for path in (here / "out").iterdir()} >= {"toy.json", "toy.png", "toy.svg"}
    for typed in (["toy", "--folder", "out", "n=6"], ["--folder", "out", "toy", "n=6"]):
        assert main(["reproduce", *typed]) == 0
        assert "6 ± 0 s" in capsys.readouterr().out
    assert main(["reproduce", "tory"]) == 2
    assert capsys.readouterr().err == "cnnkit: unknown experiment 'tory': did you mean 'toy'? Known: toy\n"
