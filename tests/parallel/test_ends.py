"""How the processes of a job end: all together, or by the fault of one, which the others name."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cnnkit.lab.jobs import JobFailed
from cnnkit.lab.launch import launch
from cnnkit.parallel import watch
from cnnkit.parallel.relay import Relay
from cnnkit.parallel.watch import Watch

ROOT = Path(__file__).parents[2]

ROUNDS = """
import sys
import jax, numpy as np
from cnnkit.parallel import workers
workers.join(timeout=60)
for n in range(10**6):
    workers.gather(np.arange(3))
    if n == 5:
        print("there", flush=True)
    if n == 9 and jax.process_index() == 1 and sys.argv[1:] == ["raise"]:
        raise ArithmeticError("my own mistake")
"""

# A job that something else put together, as SLURM's are: it has a watch from the first agreement on.
LAUNCHED = ROUNDS.replace(
    "workers.join(timeout=60)",
    """import os
jax.config.update("jax_cpu_collectives_implementation", "gloo")
place, me, count = (os.environ.pop("CNNKIT_" + name) for name in ("COORDINATOR", "PROCESS", "PROCESSES"))
jax.distributed.initialize(place, int(count), int(me))
workers.join()
workers.agree({})""",
)


def until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "gone"), [(ROUNDS, 0), (LAUNCHED, 1)])
def test_killing_a_process_ends_the_other_by_an_error_that_names_it(tmp_path, program, gone):
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"CNNKIT_COORDINATOR": f"127.0.0.1:{server.getsockname()[1]}", "CNNKIT_PROCESSES": "2"}
    shared = (
        os.environ | place | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    )
    logs = [tmp_path / f"{i}.log" for i in range(2)]
    members = []
    for i, log in enumerate(logs):
        with log.open("w") as out:
            members.append(
                subprocess.Popen(
                    [sys.executable, "-c", program],
                    env=shared | {"CNNKIT_PROCESS": str(i)},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        until(lambda: all("there" in log.read_text() for log in logs), 120)
        members[gone].send_signal(signal.SIGKILL)
        assert members[1 - gone].wait(60) == 1, logs[1 - gone].read_text()
    finally:
        for member in members:
            member.kill()
            member.wait()
    last = logs[1 - gone].read_text().splitlines()[-1]
    assert re.fullmatch(
        rf"RuntimeError: process {gone} of 2 has ended \(.*\)\. The record and the last .*", last
    )


@pytest.mark.slow
def test_an_error_in_one_process_is_told_as_the_first_and_named_by_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("cnnkit.lab.jobs.PATIENCE", 60.0)
    with pytest.raises(JobFailed) as failed:
        launch(["python", "-c", ROUNDS, "raise"], 2, gpus=False, folder=tmp_path, show=False)
    assert failed.value.statuses == {"process0": 1, "process1": 1}
    text = str(failed.value)
    assert text.startswith("process1 failed first: exit status 1. Its last lines:")
    assert text.splitlines()[-2] == "  ArithmeticError: my own mistake"
    assert (
        "RuntimeError: process 1 of 2 has ended (" in (tmp_path / "process0.log").read_text().splitlines()[-1]
    )


# --- the watch, without a job --------------------------------------------------------------------------


@pytest.fixture
def three(monkeypatch):
    """Three watches, as in three processes, and what those that left said."""
    said: dict[int, str] = {}
    watches = [Watch(i, 3, lambda why, i=i: said.setdefault(i, why)) for i in range(3)]
    port = watches[0].open()
    for other in watches[1:]:
        other.follow("127.0.0.1", port)
    until(lambda: len(watches[0]._connections) == 2)
    yield watches, said
    for one in watches:
        one.close()


def test_a_watch_is_reached_at_whichever_address_answers():
    first, other = Watch(0, 2), Watch(1, 2)
    port = first.open()
    name, others = watch.addresses()
    assert name == socket.gethostname()
    assert not any(address.startswith("127.") for address in others)
    try:
        assert other.reach("another-machine.invalid", ["127.0.0.1"], port)
        until(lambda: list(first._connections) == [1])
    finally:
        first.close()
        other.close()
    until(lambda: first._server.fileno() == -1)
    assert not Watch(1, 2).reach(name, [], port)


class Ending:
    """A watch that finishes in a thread of its own."""

    def __init__(self, one, patience=60.0):
        self.why = None
        self._thread = threading.Thread(target=lambda: setattr(self, "why", one.finish(patience)))
        self._thread.start()

    def __call__(self):
        self._thread.join(60)
        return self.why


def test_all_that_are_done_wait_for_the_last_one(three):
    watches, said = three
    first = [Ending(watches[i]) for i in (2, 0)]
    until(lambda: watches[1].ended() in ([2, 0], [0, 2]))
    assert [end.why for end in first] == [None, None]
    assert watches[1].finish(60) == ""
    assert [end() for end in first] == ["", ""]
    for one in watches:
        one.close()
    time.sleep(0.1)
    assert [one._gone() for one in watches] == [[], [], []], "what comes after is nobody's end"
    assert said == {}


@pytest.mark.parametrize("gone", [0, 1])
def test_who_is_done_hears_of_one_that_never_will_be(three, gone):
    watches, _ = three
    ends = [Ending(one) for i, one in enumerate(watches) if i != gone]
    until(lambda: len(watches[gone].ended()) >= 1)
    watches[gone].close()
    for end in ends:
        assert end().startswith(
            f"process {gone} of 3 has ended, and it was not done. The record and the last"
        )


def test_who_was_done_before_it_died_is_gone_all_the_same(three):
    watches, _ = three
    Ending(watches[1], 0.01)()
    until(lambda: watches[2].ended() == [1])
    watches[1].close()
    assert watches[2].finish(60).startswith("process 1 of 3 has ended, and it was not done")
    assert watches[2].ended() == [1]


def test_patience_with_those_that_are_not_done_has_an_end(three):
    watches, _ = three
    Ending(watches[1], 0.01)()
    assert watches[0].finish(0.5) == "process 2 of 3 is not done 0.5 s after this one"


@pytest.mark.parametrize("waiting", [0, 2])
def test_one_that_is_done_while_another_waits_for_it_ends_first(three, monkeypatch, waiting):
    """As after an error that a program caught, or sys.exit: its own last words are the job's first."""
    monkeypatch.setattr(watch, "GRACE", 0.2)
    watches, said = three
    one = watches[waiting]
    one._leave = lambda why: (said.setdefault(waiting, why), one.hang_up())
    end = Ending(watches[1])
    with one.exchange():
        assert end().startswith("another process of this job waited for this one in vain, and has ended. The")
    assert said[waiting].startswith("process 1 of 3 has ended, and this one waits for it in vain")
    assert [w.blamed for w in watches] == [False, True, False]


def test_one_that_does_not_wait_ends_too_some_time_after_another_is_gone(three, monkeypatch):
    monkeypatch.setattr(watch, "LATEST", 0.3)
    watches, said = three
    watches[0].close()
    until(lambda: {1, 2} <= set(said))
    assert said[1].startswith("process 0 of 3 has ended, and the job cannot go on without it. The record and")


# --- the relay -----------------------------------------------------------------------------------------


@pytest.fixture
def far():
    """Another machine's port, a relay to it, and this side's connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = Relay("127.0.0.1", server.getsockname()[1], 10)
        host, port = relay.address.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as here:
            yield server, here
        relay.close()


def test_a_relay_hands_on_both_ways_and_is_quiet_when_the_other_side_closes(far):
    server, here = far
    with server.accept()[0] as there:
        here.sendall(b"to")
        assert there.recv(10) == b"to"
        there.sendall(b"fro")
        assert here.recv(10) == b"fro"
    here.settimeout(0.3)
    with pytest.raises(TimeoutError):
        here.recv(10)
    here.sendall(b"still there?")


def test_a_relay_hangs_up_on_a_port_that_never_answered(far):
    server, here = far
    server.accept()[0].close()
    assert here.recv(10) == b"", "so that one tries again"


def test_a_relay_hangs_up_there_when_this_side_does(far):
    server, here = far
    with server.accept()[0] as there:
        there.settimeout(20)
        here.close()
        assert there.recv(10) == b""
