"""The command line: help, training and going on, lists and pictures, and errors of one line."""

import inspect
import json
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import cnnkit as ck
from cnnkit.command import main
from cnnkit.command import train as train_command
from cnnkit.command.main import make_parser
from cnnkit.record.rows import Record
from cnnkit.train import report
from cnnkit.train.diverge import Diverged

COMMANDS = ("train", "data", "summary", "plot", "runs", "lab", "launch")


def trained(*more):
    return main(["train", "small.py:net", "--take", "256", "--epochs", "2", *more])


def test_help_lists_every_command_and_each_has_its_own(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command} " in told
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        assert "usage: cnnkit " + command in capsys.readouterr().out


def test_python_m_cnnkit_is_the_command():
    done = subprocess.run([sys.executable, "-m", "cnnkit", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"cnnkit {ck.__version__}\n")


def test_options_of_train_are_those_of_run_with_the_same_defaults(here):
    parsed = make_parser().parse_args(["train"])
    python = {
        name: parameter.default
        for name, parameter in inspect.signature(ck.Run).parameters.items()
        if name not in ("net", "data", "watch")
    }
    assert set(python) <= set(vars(parsed))
    assert set(vars(parsed)) - set(python) == {
        "net",
        "data",
        "size",
        "hold_out",
        "take",
        "lr",
        "handler",
        "traceback",
    }
    assert parsed.data == inspect.signature(ck.load).parameters["name"].default
    # Run takes an optimizer's object where the command takes its name; the settings below tell whether they agree.
    assert {k: getattr(parsed, k) for k in python if k != "optimizer"} == {
        k: v for k, v in python.items() if k != "optimizer"
    }
    parsed = make_parser().parse_args(["train", "small.py:net"])
    data = ck.load()
    typed, written = train_command.make(parsed, data), ck.Run(typed_net(), data, folder="runs/other")
    assert typed.config == written.config
    assert str(typed.folder) == "runs/digits-net-0"


def typed_net():
    return ck.serial(ck.dense(16), ck.relu(), ck.dense(10))


def test_every_option_reaches_the_run(here):
    typed = [
        *("train", "small.py:net", "--batch", "64", "--epochs", "3", "--seed", "5", "--folder", "runs/x"),
        *(
            "--optimizer",
            "sgd(momentum=0.8)",
            "--lr",
            "one_cycle(0.2)",
            "--augment",
            "rotate(5)",
            "--no-normalize",
        ),
        *("--loss", "cross_entropy", "--smoothing", "0.1", "--dtype", "bfloat16", "--workers", "2"),
        *("--mode", "local", "--fetch", "balanced(every(4))", "--delay", "1", "--exchange", "ring"),
        *("--payload", "bfloat16", "--momentum", "average", "--outer", "nesterov", "--outer-lr", "0.6"),
        *("--outer-momentum", "0.5", "--emulate", "1,0.5", "--judge", "test,train", "--evaluate-every", "2"),
        *("--checkpoint-every", "7", "--views", "views(mirror=False, shift=2, unsure=0.5)"),
    ]
    config = train_command.make(make_parser().parse_args(typed), ck.load()).config
    wanted = ck.Run(
        typed_net(),
        ck.load(),
        batch=64,
        epochs=3,
        seed=5,
        folder="runs/x",
        optimizer=ck.optim.sgd(ck.optim.one_cycle(0.2), momentum=0.8),
        augment=ck.augment.rotate(5),
        normalize=False,
        smoothing=0.1,
        dtype="bfloat16",
        workers=2,
        fetch=ck.fetch.balanced(ck.fetch.every(4)),
        delay=1,
        exchange="ring",
        payload="bfloat16",
        momentum="average",
        outer="nesterov",
        outer_lr=0.6,
        outer_momentum=0.5,
        emulate=ck.workers.emulate([1, 0.5]),
        judge=("test", "train"),
        evaluate_every=2,
        checkpoint_every=7.0,
        views=ck.train.Views(mirror=False, shift=2, unsure=0.5),
    ).config
    assert config == wanted


def test_training_leaves_a_run_that_is_listed_drawn_and_gone_on_with(here, capsys):
    assert trained() == 0
    told = capsys.readouterr().out
    history = ck.Run.load("runs/digits-net-0", data=ck.load().take(train=256)).history
    accuracy = history[-1]["test_accuracy"]
    assert f"test accuracy {100 * accuracy:.2f} % ({round(360 * (1 - accuracy))} of 360 wrong)" in told
    assert "record, settings and checkpoint: runs/digits-net-0" in told

    assert main(["runs"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].split() == ["folder", "network", "data", "epochs", "test", "%", "train", "s"]
    assert listed[1].split()[:8] == ["runs/digits-net-0", "dense", "16,", "dense", "10", "digits", "2", "of"]
    assert f"{100 * accuracy:.2f}" in listed[1]

    assert main(["plot", "runs/digits-net-0"]) == 0
    assert capsys.readouterr().out == "runs/digits-net-0/curves.png\n"
    assert (here / "runs/digits-net-0/curves.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["plot", "a=runs/digits-net-0", "--y", "loss", "lr", "--out", "two.svg"]) == 0
    assert "<svg" in (here / "two.svg").read_text()
    capsys.readouterr()

    files = {path: path.stat().st_mtime_ns for path in (here / "runs/digits-net-0").iterdir()}
    assert trained("--workers", "2") == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0].startswith(
        "runs/digits-net-0 is done, and nothing is trained; for more give a larger --epochs, to begin anew another"
    )
    assert again[1:] == told.splitlines()[-2:]
    assert files == {path: path.stat().st_mtime_ns for path in (here / "runs/digits-net-0").iterdir()}
    assert trained("--epochs", "3") == 0
    assert "goes on from epoch 2.00 of 3\nepoch 3/3" in capsys.readouterr().out
    assert trained("--batch", "32") == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "cnnkit: runs/digits-net-0 holds another run: batch was 128, is 32. Give the same"
    )
    assert error.endswith("draw it with cnnkit plot, or use another --folder\n")
    assert error.count("\n") == 1


def test_a_rate_too_high_is_told_and_what_may_begin_in_its_folder(here, capsys, monkeypatch):
    wild = ("--optimizer", "sgd(momentum=0)", "--folder", "runs/nan")
    assert trained(*wild, "--lr", "1e38") == 2
    out, error = capsys.readouterr()
    assert re.search(r"^failed at epoch [01]\.\d\d of 2$", out, re.M)
    assert "There was no checkpoint yet. Lower the learning rate" in error
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "runs/nan",
        "dense",
        "16,",
        "dense",
        "10",
        "digits",
        "0",
        "of",
        "2,",
        "diverged",
    ]
    Record("runs/nan").append({"kind": "epoch", "epoch": 1})
    assert trained(*wild, "--lr", "0.05") == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "cnnkit: runs/nan holds another run: optimizer.schedule.lr was 1e+38, is 0.05. Give"
    )

    def fit():
        raise Diverged("the loss is not a finite number")

    monkeypatch.setattr(
        train_command,
        "make",
        lambda *_: SimpleNamespace(epoch=1, epochs=2, folder=here / "runs/nan", fit=fit),
    )
    assert trained() == 2
    assert capsys.readouterr().err == (
        "cnnkit: the loss is not a finite number. With other settings it begins anew, in another --folder\n"
    )


AGAIN = "To go on: cnnkit train small.py:net --take 256 --epochs 2 --epochs 4 --folder 'runs/my run'\n"


def interrupted(monkeypatch, capsys, times):
    """What is said when the first epochs end with so many Ctrl-Cs."""
    left = iter(range(times))
    with monkeypatch.context() as patch:
        patch.setattr(
            report.Lines, "row", lambda self, run, row: [signal.raise_signal(signal.SIGINT) for _ in left]
        )
        assert trained("--epochs", "4", "--folder", "runs/my run") == 130
    return capsys.readouterr().err


def test_ctrl_c_saves_says_how_to_go_on_and_the_same_command_does(here, capsys, monkeypatch):
    told = interrupted(monkeypatch, capsys, times=1)
    found = re.fullmatch(
        r"cnnkit: stopped; runs/my run holds the checkpoint of epoch ([12]\.\d\d) of 4\. (.*)", told, re.S
    )
    assert found is not None, told
    assert found[2] == AGAIN
    assert trained("--epochs", "4", "--folder", "runs/my run") == 0
    assert f"goes on from epoch {found[1]} of 4\n" in capsys.readouterr().out
    rows = [json.loads(line) for line in (here / "runs/my run/record.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [1, 2, 3, 4]


def test_a_second_ctrl_c_ends_at_once_and_does_not_claim_to_have_saved(here, capsys, monkeypatch):
    told = interrupted(monkeypatch, capsys, times=2)
    assert told == f"cnnkit: stopped; no checkpoint is in runs/my run yet. {AGAIN}"


def test_workers_are_drawn_by_round(here, capsys):
    assert trained("--workers", "2", "--batch", "32", "--fetch", "2", "--folder", "runs/two") == 0
    told = r"2 workers, each a CPU device that JAX makes up, share this machine's \d+ cores?: rounds are as on 2 devices"
    assert re.match(told, capsys.readouterr().out)
    assert main(["plot", "runs/two", "--rounds"]) == 0
    assert (here / "runs/two/rounds.png").stat().st_size > 2000


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["train", "lenett"], "cnnkit: unknown network 'lenett': did you mean 'lenet'? Known: "),
        (["train", "lenet"], "cnnkit: layer 3 (conv 50 5×5) got 2×2×20: a window of 5 does not fit"),
        (["train", "--data", "mnits"], "cnnkit: unknown data set 'mnits': did you mean 'mnist'?"),
        (
            ["train", "--hold-out", "2.5"],
            "cnnkit: hold_out of digits: a fraction must lie between 0 and 1, got 2.5",
        ),
        (
            ["train", "small.py:net", "--fetch", "evry(4)"],
            "cnnkit: unknown fetch policy 'evry': did you mean 'every'?",
        ),
        (
            ["train", "small.py:net", "--exchange", "rin"],
            "cnnkit: unknown exchange 'rin': did you mean 'ring'?",
        ),
        (["train", "small.py:net", "--emulate", "7"], "cnnkit: speeds to emulate are between 1/60 and 1"),
        (["summary", "lenet", "--shape", "8,8,1"], "cnnkit: layer 3 (conv 50 5×5) got 2×2×20"),
        (["plot", "gone"], "cnnkit: gone holds no record.jsonl"),
        (["plot", "a=x", "y"], "cnnkit: give every folder a label, or none"),
        (["plot", "x", "y", "--rounds"], "cnnkit: --rounds draws one run; give one folder"),
        (["runs", "gone"], "cnnkit: gone: no such folder"),
        (["data", "fetch", "imagenet"], "cnnkit: unknown data set 'imagenet': "),
        (
            ["train", "--data", "/nonexistent"],
            "cnnkit: /nonexistent: no such folder; data is one of digits, ",
        ),
        (
            ["train", "small.py:none"],
            "cnnkit: small.py:none is called with one argument, the number of classes, but it is none()",
        ),
        (
            ["train", "small.py:forgets"],
            "cnnkit: small.py:forgets returned None, not a network; end it with return serial",
        ),
        (
            ["train", "small.py:net", "--smoothing", "0.1", "--loss", "squared_error"],
            "cnnkit: --smoothing 0.1 goes with --loss cross_entropy, not 'squared_error'",
        ),
        (
            ["train", "--optimizer", "sgd(momentun=0.9)"],
            "cnnkit: optimizer 'sgd(momentun=0.9)': sgd() got an unexpected ",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(here, capsys, argv, told):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(told)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["trian"], "cnnkit: argument COMMAND: invalid choice: 'trian' (choose from"),
        (["trian"], "; did you mean train?"),
        (
            ["train", "--batchsize", "32"],
            "cnnkit train: unrecognized arguments: --batchsize; did you mean --batch?",
        ),
        (["runs", "--foldr=x"], "cnnkit runs: unrecognized arguments: --foldr=x; see"),
        (["--tracebak", "runs"], "cnnkit: unrecognized arguments: --tracebak; did you mean --traceback?"),
        (
            ["train", "--epochs", "0"],
            "cnnkit train: argument --epochs: '0' is not a whole number of at least 1",
        ),
        (
            ["train", "--momentum", "0.9"],
            "the strength goes with the optimizer: --optimizer 'sgd(momentum=0.9)'",
        ),
        (["train", "--emulate", "fast"], "'fast' is not a list of speeds, as 1,0.5"),
        (["summary", "lenet", "--shape", "8,8"], "'8,8' is not height, width and channels, as 28,28,1"),
        (["data", "describe"], "the following arguments are required: NAME; see cnnkit data describe --help"),
    ],
)
def test_what_cannot_be_parsed_is_one_line_that_points_to_help(capsys, argv, told):
    with pytest.raises(SystemExit) as end:
        main(argv)
    error = capsys.readouterr().err
    assert (end.value.code, error.count("\n")) == (2, 1)
    assert told in error
    assert error.endswith("--help\n")


def test_a_fault_that_is_not_the_users_keeps_its_traceback(here):
    (here / "faulty.py").write_text(
        "def net(classes):\n    return [][classes]\n\ndef other(classes):\n    return int('x')\n"
    )
    with pytest.raises(IndexError):
        main(["train", "faulty.py:net"])
    with pytest.raises(ValueError, match="invalid literal"):
        main(["train", "faulty.py:other"])
    with pytest.raises(ValueError, match="unknown network"):
        main(["--traceback", "train", "lenett"])


def test_data_sets_are_listed_and_described(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CNNKIT_DATA", str(tmp_path))
    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["digits", "mnist", "fashion_mnist", "cifar10", "cifar100"]
    assert lines[0].endswith("digits.npz")
    assert main(["data", "describe", "digits"]) == 0
    assert "train          1,437 examples, 139 to 146 a class" in capsys.readouterr().out
    assert main(["data", "fetch", "digits"]) == 0
    assert capsys.readouterr().out.startswith("digits: verified, in bundled with cnnkit")


def test_a_summary_takes_its_shape_from_a_set_or_from_numbers(capsys):
    assert main(["summary", "lenet", "--shape", "28,28,1"]) == 0
    assert "431,080" in capsys.readouterr().out
    assert main(["summary", "lenet", "--shape", "28x28x1", "--classes", "26"]) == 0
    assert "439,096" in capsys.readouterr().out
