"""launch: the processes of one job on this machine, without links."""

import json
import os
import signal
import sys
import time

import pytest

from cnnkit.lab.jobs import JobFailed, describe
from cnnkit.lab.launch import launch

ME = """
import json, os, sys
names = ("COORDINATOR", "PROCESS", "PROCESSES")
print(json.dumps([*(os.environ["CNNKIT_" + name] for name in names), os.environ["JAX_NUM_CPU_DEVICES"]]))
"""


def test_processes_know_their_place(tmp_path, capsys):
    assert launch(["python", "-c", ME], 2, workers_per_process=3, folder=tmp_path) == {
        "process0": 0,
        "process1": 0,
    }
    said = [json.loads((tmp_path / f"process{i}.log").read_text()) for i in range(2)]
    host, port = said[0][0].split(":")
    assert host == "127.0.0.1"
    assert int(port) > 1023
    assert said == [[f"127.0.0.1:{port}", str(i), "2", "3"] for i in range(2)]
    shown = sorted(capsys.readouterr().out.splitlines())
    assert shown == [f"process{i} | {json.dumps(said[i])}" for i in range(2)]


def test_the_first_failure_ends_all_and_is_told(monkeypatch):
    monkeypatch.setattr("cnnkit.lab.jobs.PATIENCE", 0.2)
    text = "import os, sys, time; os.environ['CNNKIT_PROCESS'] == '1' and sys.exit('no luck'); time.sleep(60)"
    with pytest.raises(JobFailed, match=r"process1 failed first: exit status 1\. Its last lines:\n  no luck"):
        launch(["python", "-c", text], 2, show=False)


def test_what_cannot_be_launched(monkeypatch):
    with pytest.raises(ValueError, match=r"how many processes\? This machine shows no GPU to count"):
        launch(["python", "train.py"])
    with pytest.raises(FileNotFoundError, match="no program 'pyhton' on PATH"):
        launch(["pyhton", "train.py"], 2)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ValueError, match="3 processes with 1 GPU each need 3 GPUs; this machine has 2"):
        launch(["python", "train.py"], 3)
    assert launch(["true"]) == {"process0": 0, "process1": 0}, "one process a GPU"


HOLD = "from cnnkit.lab.launch import launch; launch(['sleep', '60'], 2)"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_nothing_is_left_when_the_launcher_is_killed(tmp_path, program, marked, eventually, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    launcher = program(HOLD)
    eventually(lambda: sum(words[0].endswith("sleep") for _, words in marked().values()) == 2)
    launcher.send_signal(signal.SIGKILL)
    eventually(lambda: not marked())
    program(HOLD.replace("sleep", "test")).wait(30)
    assert list(tmp_path.iterdir()) == [], "the next start removes what was left"


def test_an_interrupt_is_passed_on(tmp_path, program, eventually):
    save = "import time\ntry:\n print('up', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('saved')"
    text = "import sys; from cnnkit.lab.launch import launch; launch(['python', '-c', sys.argv[2]], 1, folder=sys.argv[1])"
    launcher = program(text, tmp_path, save)
    log = tmp_path / "process0.log"
    eventually(lambda: log.exists() and log.read_text() == "up\n")
    time.sleep(0.1)
    os.kill(launcher.pid, signal.SIGINT)
    launcher.communicate(timeout=30)
    assert log.read_text() == "up\nsaved\n"


def test_statuses_in_words():
    assert describe(3) == "exit status 3"
    assert describe(-signal.SIGTERM) == "killed by SIGTERM"
    assert describe(None) == "still running"
