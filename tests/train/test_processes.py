"""Jobs of several real processes on CPU, joined by Gloo: the numbers of one process, and what happens when one dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cnnkit.parallel import watch
from cnnkit.parallel.watch import Watch
from tests.train.conftest import flat, plain_rows
from tests.train.member import net

HERE = Path(__file__).parent


class Job:
    """Processes that run the same; ``per`` has what differs, by process and run."""

    def __init__(self, folder, processes, runs, per=lambda process, run: {}, **environment):
        with socket.create_server(("127.0.0.1", 0)) as server:
            coordinator = f"127.0.0.1:{server.getsockname()[1]}"
        shared = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "PYTHONPATH": str(HERE.parents[1]),
        }
        shared |= {"CNNKIT_COORDINATOR": coordinator, "CNNKIT_PROCESSES": str(processes)}
        self.folder, self.members = folder, []
        for i in range(processes):
            mine = json.dumps([run | per(i, number) for number, run in enumerate(runs)])
            command = [sys.executable, str(HERE / "member.py"), str(folder / f"{i}.json"), mine]
            with (folder / f"{i}.log").open("w") as log:
                member = subprocess.Popen(
                    command,
                    env=shared | {"CNNKIT_PROCESS": str(i)} | environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self.members.append(member)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for member in self.members:
            member.kill()
            member.wait()

    def log(self, i):
        return (self.folder / f"{i}.log").read_text()

    def told(self, timeout=150):
        """What each process told of each run."""
        end = time.monotonic() + timeout
        for member in self.members:
            member.wait(max(end - time.monotonic(), 0.1))
        assert [m.returncode for m in self.members] == [0] * len(self.members), self.log(0) + self.log(1)
        return [json.loads((self.folder / f"{i}.json").read_text()) for i in range(len(self.members))]


def without_clocks(rows):
    return [
        {k: v for k, v in row.items() if "seconds" not in k and "total" not in k and k != "busy"}
        for row in rows
    ]


RUNS = [
    {"fetch": 2},
    {"fetch": 2, "delay": 1},
    {"fetch": 2, "delay": 1, "mode": "accumulate", "freeze": [[1, 1]]},
    {"fetch": 2, "delay": 1, "payload": "int8", "exchange": "redundant", "momentum": "average"},
]
OWN_WAYS = [
    ({"epochs": 4}, {1: {"acts": {"stop_at": 3}}}),
    ({"epochs": 2}, {0: {"acts": {"scale_at": 1}}, 1: {}}),
    ({"nan_at": 3}, {}),
    ({}, {1: {"seed": 1}}),
    ({}, {1: {"width": 9, "batch": 8}}),
    ({"fetch": 3}, {1: {"fetch": 2}}),
    ({"freeze": [[1, 1]]}, {1: {"freeze": []}}),
    ({"layerwise": "ring"}, {}),
]


@pytest.mark.slow
def test_two_processes_are_as_one_with_two_devices(make, tmp_path):
    shared = {"batch": 16, "epochs": 2}
    runs = [shared | rules for rules in RUNS] + [shared | rules for rules, _ in OWN_WAYS]
    per = lambda i, number: OWN_WAYS[number - len(RUNS)][1].get(i, {}) if number >= len(RUNS) else {}
    with Job(tmp_path, 2, runs, per) as job:
        first, second = job.told()
    for number, rules in enumerate(RUNS):
        here = make(net(), **shared, workers=2, **rules).fit()
        a, b = first[number], second[number]
        assert a["numbers"] == b["numbers"]
        assert a["evaluated"] == b["evaluated"]
        assert (a["workers"], a["round"], a["overlaps"]) == (2, here.engine.round, bool(rules.get("delay")))
        # Not bit for bit: alone, exchange and computing are one program, which rounds otherwise than two.
        np.testing.assert_allclose(a["numbers"], flat((here.params, here.state)), rtol=1e-5, atol=1e-6)
        assert [row["examples"] for row in a["history"]] == [203, 406]
        assert [r["steps"] for r in a["rounds"]] == [r["steps"] for r in without_clocks(here.record.rounds())]
        assert without_clocks(a["rounds"]) == without_clocks(b["rounds"])
    stopped, scaled, diverged, *disagreed, layerwise = zip(
        first[len(RUNS) :], second[len(RUNS) :], strict=True
    )
    # Each parameter exchanged by itself gives the numbers of one exchange of all.
    here = make(net(), **shared, workers=2, mode="accumulate", fetch=1).fit()
    assert layerwise[0] == layerwise[1]
    np.testing.assert_allclose(
        layerwise[0]["numbers"][:-1], flat((here.params, here.state)), rtol=1e-4, atol=1e-5
    )
    # What one process wishes goes with its next exchange, and all do it at the same time.
    assert [(told["phase"], told["round"]) for told in stopped] == [("stopped", 4)] * 2
    assert [told["rounds"][-1]["fetch"] for told in scaled] == [[1, 0]] * 2
    assert [r["fetch"] for r in scaled[1]["rounds"]][:4] == [[1, 1], [1, 1], [2, 2], [2, 2]]
    assert scaled[1]["history"][-1]["lr"] == pytest.approx(0.005)
    assert scaled[0]["numbers"] == scaled[1]["numbers"]
    for told in diverged:
        assert "the loss is not a finite number since epoch 1, mini-batch 8, worker 1" in told["error"]
    differ = "the processes of this job do not run the same: "
    assert [told["error"] for told in disagreed[0]] == [
        f"{differ}seed is 1 in process 1 and 0 in process 0"
    ] * 2
    for told in disagreed[1]:
        features = "net.parts[0].features is 9 in process 1 and 8 in process 0"
        assert told["error"] == f"{differ}batch is 8 in process 1 and 16 in process 0; {features}"
    for told in disagreed[2]:
        assert told["error"] == f"{differ}fetch is 'every(2)' in process 1 and 'every(3)' in process 0"
    for told in disagreed[3]:
        assert told["error"] == f"{differ}freeze is [] in process 1 and [[1, 1]] in process 0"


@pytest.mark.long
@pytest.mark.slow
def test_four_processes_go_on_from_what_one_of_them_wrote(make, tmp_path):
    """Each on a disk of its own: the others have neither the checkpoint nor the record."""
    shared = {"batch": 8, "delay": 1, "fetch": 2, "checkpoint_every": 0}
    runs = [shared | {"epochs": 1}, shared | {"epochs": 3}]
    per = lambda i, number: {"folder": str(tmp_path / f"disk{i}")}
    with Job(tmp_path, 4, runs, per) as job:
        told = job.told()
    whole = make(net(), **shared, epochs=3, workers=4).fit()
    for i, (before, after) in enumerate(told):
        assert after["began"] == ([1, len(before["rounds"]) + 1] if i == 0 else [0, 0])
        assert (after["phase"], after["round"], after["overlaps"]) == ("done", whole.engine.round, True)
        assert after["numbers"] == told[0][1]["numbers"]
        assert after["folder"] == (
            [".lock", "checkpoint.safetensors", "config.json", "record.jsonl"] if i == 0 else []
        )
    np.testing.assert_allclose(told[0][1]["numbers"], flat((whole.params, whole.state)), rtol=1e-5, atol=1e-6)
    assert [row["examples"] for row in told[0][1]["history"]] == [203, 406, 609]
    fewer = make(net(), **shared, epochs=4, workers=3, folder=tmp_path / "disk0").fit()
    assert [row["epoch"] for row in fewer.history] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_fewer_go_on(make, tmp_path):
    runs = [{"batch": 8, "epochs": 30, "fetch": 2, "folder": str(tmp_path / "run"), "checkpoint_every": 0.1}]
    with Job(tmp_path, 3, runs, lambda i, number: {"acts": {"sleep": 0.02}}) as job:
        end = time.monotonic() + 120
        while job.log(1).count("round") < 12:
            assert time.monotonic() < end, job.log(1)
            time.sleep(0.02)
        job.members[1].send_signal(signal.SIGKILL)
        for i in (0, 2):
            job.members[i].wait(60)
            assert job.members[i].returncode != 0
            (told,) = json.loads((tmp_path / f"{i}.json").read_text())
            assert told["error"].startswith("process 1 of 3 has ended (")
            assert "start the job again, with as many processes or fewer" in told["error"]
    for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines():
        assert json.loads(line)["kind"] in ("epoch", "rounds")
    settings = {k: v for k, v in runs[0].items() if k != "epochs"}
    run = make(net(), **settings, epochs=30, workers=2)
    begun = run.epochs_done
    assert 0 < begun < 30
    run.fit(int(begun) + 2)
    assert [row["examples"] for row in run.history] == [203 * (e + 1) for e in range(int(begun) + 2)]
    assert plain_rows(run)[-1]["epoch"] == int(begun) + 2


# --- the watch, without a job -------------------------------------------------------------------------


@pytest.fixture
def three(monkeypatch):
    """Three watches, as in three processes, and what those that left said."""
    monkeypatch.setattr(watch, "GRACE", 0.3)
    said: dict[int, str] = {}
    watches = [Watch(i, 3, lambda why, i=i: said.setdefault(i, why)) for i in range(3)]
    port = watches[0].open()
    for other in watches[1:]:
        other.follow("127.0.0.1", port)
    until(lambda: len(watches[0]._connections) == 2)  # they are let in by a thread
    yield watches, said
    for one in watches:
        one.close()


def test_all_hear_whose_end_it_was(three):
    watches, said = three
    assert [w.ended() for w in watches] == [[], [], []]
    watches[1].close()
    assert watches[0].ended(wait=10) == watches[2].ended(wait=10) == [1]
    watches[0].close()
    until(lambda: watches[2].ended() == [1, 0])
    assert said == {}


def test_the_others_hear_of_an_end_before_this_process_acts_on_it(three, monkeypatch):
    watches, _ = three
    send = Watch._send

    def slowly(connection, line):
        if line != b".":
            time.sleep(0.3)
        send(connection, line)

    monkeypatch.setattr(Watch, "_send", staticmethod(slowly))
    watches[1].close()
    assert watches[0].ended(wait=10) == [1]
    watches[0].close()  # as it would end on a failed exchange
    until(lambda: len(watches[2].ended()) == 2)
    assert watches[2].ended() == [1, 0]


def test_who_waits_in_vain_leaves_and_says_why(three):
    watches, said = three
    with watches[2].exchange():
        watches[1].close()
        until(lambda: 2 in said)
    assert said[2].startswith(
        "process 1 of 3 has ended, and this one waits for it in vain. The record and the last"
    )
    assert 0 not in said


def test_a_failed_exchange_names_the_one_that_ended(three):
    from jax.errors import JaxRuntimeError

    watches, _ = three
    watches[2].close()
    with (
        pytest.raises(
            RuntimeError,
            match=r"process 2 of 3 has ended \(Gloo AllReduce failed: Connection closed by peer\)\. The record",
        ),
        watches[1].exchange(),
    ):
        raise JaxRuntimeError("Gloo AllReduce failed: Connection closed by peer\nmore")
    with pytest.raises(JaxRuntimeError, match="RESOURCE_EXHAUSTED"), watches[1].exchange():
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
    monkey = Watch(0, 1)
    monkey.ended = lambda wait=0.0: []
    with (
        pytest.raises(RuntimeError, match="another process of this job has ended or cannot be reached"),
        monkey.exchange(),
    ):
        raise JaxRuntimeError("NCCL operation failed: remote process exited")


def test_one_that_says_nothing_is_given_up_once_it_is_waited_for():
    said: list[str] = []
    first = Watch(0, 2, said.append, silence=0.4)
    with socket.create_connection(("127.0.0.1", first.open())) as silent:
        silent.sendall(b"1\n")
        until(lambda: 1 in first._connections)
        time.sleep(0.8)
        assert said == []
        with first.exchange():
            until(lambda: said)
    first.close()
    assert said[0].startswith(
        "process 1 of 2 has not been heard of for 0.4 s: it hangs, or its link is cut or too slow, and this one waits"
    )


def test_strangers_are_no_processes(three):
    watches, _ = three
    port = watches[0]._server.getsockname()[1]
    fourth = Watch(0, 4)
    port = fourth.open()
    for text in (b"GET / HTTP/1.0\n\n", b"\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(text)
    last = Watch(3, 4)
    last.follow("127.0.0.1", port)
    until(lambda: list(fourth._connections) == [3])
    last.close()
    assert fourth.ended(wait=10) == [3]
    fourth.close()


def until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
