"""The list of what has been trained: names of networks, and folders in which something is damaged."""

import json

import pytest

from cnnkit.command import main
from cnnkit.command.speech import spoken
from cnnkit.record.rows import Record


def test_a_damaged_run_is_named_and_the_others_are_listed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = {"data": {"name": "digits"}, "epochs": 2, "net": {"kind": "serial"}}
    for name, more in (
        ("a", {"net_name": "tiny"}),
        ("b", {}),
        ("c", {}),
        ("d", {"net": "of another program"}),
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{" if name == "b" else json.dumps(facts | more))
    Record("runs/a").append({"kind": "epoch", "epoch": 1, "test_accuracy": 0.5, "train_total": 3.0})
    Record("runs/c").append({"kind": "event", "event": "diverged"})
    assert main(["runs"]) == 2
    out, error = capsys.readouterr()
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["runs/a", "tiny", "digits", "1", "of", "2", "50.00", "3.0"],
        ["runs/c", "serial", "digits", "0", "of", "2,", "diverged"],
    ]
    assert error.startswith("cnnkit: runs/b/config.json is damaged (")
    assert error.endswith("restore it, or give the run another --folder\n")


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("free space and call fit() again, or run.save() elsewhere", "free space and give the same command again"),
        ("[Errno 28] such as size=20", "such as --size 20"),
        ("outer='nesterov' goes with mode='local'; x", "--outer nesterov goes with --mode local; x"),
        ("outer_lr=0.5, or fetch=1.", "--outer-lr 0.5, or --fetch 1."),
        ("period(seconds=1, epochs=[(0, 1), (5, 16)]) or epochs=2", "period(seconds=1, epochs=[(0, 1), (5, 16)]) or --epochs 2"),
        ("my_size=3 and a.size=4", "my_size=3 and a.size=4"),
    ],
)  # fmt: skip
def test_errors_speak_of_options(python, typed):
    assert spoken(python, ["size", "outer", "outer_lr", "mode", "fetch", "epochs"]) == typed
