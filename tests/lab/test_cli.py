"""The commands lab and launch, and what they say where a lab is impossible."""

import importlib.util
import sys

import pytest

from cnnkit.lab.cli import main
from cnnkit.lab.cluster import require


@pytest.mark.lab
@pytest.mark.usefixtures("allowed")
def test_a_lab_runs_a_command_and_reports_each_node(tmp_path, capsys):
    arguments = ["--nodes", "2", "--rate", "1gbit", "--cpu", "--logs", str(tmp_path)]
    assert main(["lab", *arguments, "--", "sh", "-c", "echo $JAX_PLATFORMS"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert sorted(out[:2]) == ["node0 | cpu", "node1 | cpu"]
    assert out[2:] == ["node0: exit status 0, node1: exit status 0"]
    assert (tmp_path / "node1.log").read_text() == "cpu\n"


@pytest.mark.lab
@pytest.mark.usefixtures("allowed")
def test_a_failing_nodes_status_is_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "echo bad >&2; test $CNNKIT_PROCESS = 0 || exit 7"
    assert main(["lab", "--nodes", "2", "--keep-going", "--", "sh", "-c", text]) == 7
    assert "cnnkit: node1 failed first: exit status 7. Its last lines:\n  bad\n" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("runs/lab-*/*")) == ["node0.log", "node1.log"]


@pytest.mark.lab
@pytest.mark.usefixtures("allowed")
def test_a_lab_checks_its_links(capsys):
    assert main(["lab", "--rate", "200mbit", "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["node0", "node1"]
    for line in lines:
        # A busy machine carries less; more than the rate would be a link without a shaper.
        assert 0 < float(line.split("receives ")[1].split()[0]) < 220
        assert line.split(", asked ")[1].startswith("200mbit; round trip 0.")


def test_launch_from_the_command_line(tmp_path, capsys):
    arguments = [
        "launch",
        "--processes",
        "2",
        "--logs",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        "echo $CNNKIT_PROCESS",
    ]
    assert main(arguments) == 0
    out = capsys.readouterr().out.splitlines()
    assert sorted(out[:2]) == ["process0 | 0", "process1 | 1"]
    assert out[2:] == ["process0: exit status 0, process1: exit status 0"]


def test_mistakes_are_told_in_a_line(capsys):
    assert main(["lab", "--nodes", "2"]) == 2
    assert capsys.readouterr().err == "cnnkit: no command: write it after --, e.g. -- python train.py\n"
    assert main(["lab", "--rate", "fast", "--", "true"]) == 2
    assert "rate 'fast': expected a number with a unit" in capsys.readouterr().err


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_other_systems_are_told_at_once(monkeypatch, platform, name):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(OSError, match=f"network namespaces, which {name} does not have.*cnnkit launch"):
        require()


def test_pyroute2_missing(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"pyroute2, which is missing: pip install -e '\.\[lab\]' in the folder"
    ):
        require()
