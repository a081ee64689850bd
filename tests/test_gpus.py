"""All that is measured on GPUs by one command: which jobs run where, what is told, and what is not done twice."""

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import gpus
from benchmarks.gpus import JOBS, Job, Measured

SAY = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
WAIT = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """Jobs whose words are a program's text."""
    monkeypatch.setattr(Job, "command", property(lambda job: [sys.executable, "-c", job.words]))


def seen(folder, name):
    return (folder / f"{name}.log").read_text().split()


def measured(jobs, folder, there=("0", "1")):
    return Measured(jobs, there, folder)


def test_jobs_of_one_gpu_run_side_by_side_and_those_of_two_get_both(tmp_path):
    there = str(tmp_path / "there")
    jobs = {
        "both": Job(SAY, 2),
        "waits": Job(f"{SAY}\n{WAIT.format(there)}"),
        "makes": Job(f"{SAY}\nopen({there!r}, 'w')"),
        "both again": Job(SAY, 2),
        "last": Job(SAY),
    }
    ended = measured(jobs, tmp_path / "logs").run(60, poll=0.01)
    assert set(ended) == set(jobs)
    assert all(how.startswith("done in ") for how in ended.values())
    assert [seen(tmp_path / "logs", name) for name in jobs] == [["0,1"], ["0"], ["1"], ["0,1"], ["0"]]


def test_trainings_that_are_not_timed_share_a_gpu_and_no_other_job_runs_there(tmp_path):
    """Each of three waits until all three have begun; the timed one begins when they have ended."""
    every = [str(tmp_path / name) for name in "abc"]
    meet = f"{SAY}\nopen({{!r}}, 'w')\n" + "\n".join(WAIT.format(name) for name in every)
    assert gpus.SHARERS == 3
    jobs = {name: Job(meet.format(name), shares=True) for name in every}
    jobs |= {"fourth": Job(SAY, shares=True), "timed": Job(SAY)}
    jobs = {Path(name).name: job for name, job in jobs.items()}
    run = measured(jobs, tmp_path / "logs", ["5"])
    begun = []
    begin = run._begin

    def noted(name, job, taken):
        begun.append((name, sorted(run.running)))
        begin(name, job, taken)

    run._begin = noted
    ended = run.run(60, poll=0.01)
    assert all(how.startswith("done in ") for how in ended.values())
    assert begun[:3] == [("a", []), ("b", ["a"]), ("c", ["a", "b"])]
    assert [seen(tmp_path / "logs", name) for name in jobs] == [["5"]] * 5
    assert dict(begun)["timed"] == []
    assert run._room(Job(SAY)) == ["5"]  # free again


def test_one_that_fails_is_told_and_done_again_the_others_are_not(tmp_path, capsys):
    jobs = {
        "fails": Job("print('on the way'); raise SystemExit('no such thing')"),
        "needs it": Job(SAY, after=("fails",)),
        "needs more": Job(SAY, 3),
        "works": Job(SAY),
    }
    ended = measured(jobs, tmp_path).run(60, poll=0.01)
    assert ended["fails"].startswith("failed after 0 s with status 1: no such thing")
    assert ended["needs it"] == "left out: it goes on from fails"
    assert ended["needs more"] == "left out: it takes 3 GPUs, and there are 2"
    assert f"needs more: {ended['needs more']}\n" in capsys.readouterr().out
    jobs["fails"] = Job(SAY)
    again = measured(jobs, tmp_path).run(60, poll=0.01)
    assert [name for name, how in again.items() if how.startswith("done")] == ["fails", "needs it"]
    assert "works" not in again
    measured(jobs, tmp_path).forget("works")
    assert measured(jobs, tmp_path).run(60, poll=0.01)["works"].startswith("done")


def test_when_the_time_is_over_a_job_writes_what_it_has_found(tmp_path):
    begun, found = (str(tmp_path / name) for name in ("begun", "found"))
    work = f"""
import time
try:
    open({begun!r}, "w")
    time.sleep(100)
except KeyboardInterrupt:
    open({found!r}, "w").write("a half")
"""
    jobs = {"long": Job(work), "shorter": Job(WAIT.format(begun)), "behind": Job(SAY, 2)}
    run = measured(jobs, tmp_path / "logs")
    # The time is over when the second one has seen the first one at work.
    ended = run.run(Until(lambda: run.done("shorter")), poll=0.01)
    assert Path(found).read_text() == "a half"
    assert ended["shorter"].startswith("done")
    assert ended["long"].endswith("when the time was over")
    assert ended["behind"] == "not begun: no time was left"
    assert not run.done("long")


class Until(float):
    """So many seconds that they are over when something is so."""

    def __new__(cls, over):
        made = super().__new__(cls, 0)
        made.over = over
        return made

    def __radd__(self, now):
        return self

    def __gt__(self, now):
        return not self.over()


def test_every_job_names_a_benchmark_and_options_that_it_has():
    for name, job in JOBS.items():
        module, *arguments = shlex.split(job.words)
        spec = importlib.util.find_spec(f"benchmarks.{module}")
        assert spec is not None, name
        text = Path(spec.origin).read_text()
        options = [word for word in arguments if word.startswith("--")]
        assert [option for option in options if f'"{option}"' not in text] == [], name
        assert set(job.after) <= set(JOBS)


def test_the_command_says_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit):
        gpus.main(["--folder", str(tmp_path)])
    assert "no GPU is seen here" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        gpus.main(["cores"])
    assert "unknown job 'cores': did you mean 'core'?" in capsys.readouterr().err
    assert gpus.main(["core", "two", "--list"]) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["core", "1", "GPU"],
        ["two", "2", "GPUs"],
    ]


def test_jobs_that_are_named_again_are_done_again(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "JOBS", {"one": Job(SAY), "fails": Job("raise SystemExit(3)")})
    monkeypatch.setattr(gpus.environment, "gpus", lambda: ["7"])
    asked = ["one", "--folder", str(tmp_path), "--cache", str(tmp_path / "cache")]
    assert [gpus.main(asked), gpus.main(asked), gpus.main([*asked, "--again", "one"])] == [0, 0, 0]
    assert seen(tmp_path, "one") == ["7", "7"]
    assert gpus.main(["fails", "--folder", str(tmp_path)]) == 1
