"""Clusters: who the nodes are, what runs on them, how jobs end, and faults of links and nodes."""

import io
import json
import os
import signal
import sys
import time

import pytest

from cnnkit.lab import check
from cnnkit.lab import cluster as make
from cnnkit.lab.cluster import Cluster
from cnnkit.lab.jobs import JobFailed

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("allowed")]

WHO = """
import json, os, socket
me = {name.removeprefix("CNNKIT_").lower(): value for name, value in os.environ.items() if "CNNKIT_" in name}
me |= {"host": socket.gethostname(), "address": socket.gethostbyname(socket.gethostname())}
me |= {"links": sorted(name for _, name in socket.if_nameindex()), "cores": sorted(os.sched_getaffinity(0))}
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    me["outside"] = error.strerror
print(json.dumps(me))
"""


@pytest.fixture(scope="module")
def c(allowed):
    with make(nodes=3, rate="80mbit", gpus=False) as cluster:
        yield cluster


def said(job, name):
    return json.loads(job.tail(name, 1))


def test_each_node_has_a_name_an_address_a_place_and_no_way_out(c):
    job = c.run(["python", "-c", WHO], show=False)
    assert job.statuses == {"node0": 0, "node1": 0, "node2": 0}
    for i, name in enumerate(["node0", "node1", "node2"]):
        who = said(job, name)
        assert (who["host"], who["address"]) == (name, f"10.77.0.{i + 1}")
        assert who["links"] == ["link", "lo"]
        assert (who["process"], who["processes"]) == (str(i), "3")
        assert who["coordinator"] == said(job, "node0")["coordinator"]
        assert who["outside"] == "Network is unreachable"
    assert os.uname().nodename != "node0"


def test_the_lines_of_all_nodes_are_shown_and_kept_apart(c):
    text = "import os; print('a\\rb', os.environ['CNNKIT_PROCESS']); print('end', end='')"
    job, out = c.popen(["python", "-c", text]), io.StringIO()
    job.follow(out=out)
    assert sorted(out.getvalue().splitlines()) == [
        f"node{i} | {line}" for i in range(3) for line in (f"b {i}", "end")
    ]
    assert job.logs["node2"].name == "node2-2.log"
    # read_text would turn the bar's \r into a line of its own
    assert job.logs["node2"].read_bytes().endswith(b"a\rb 2\nend")


def test_a_later_job_talks_at_another_port_and_reports_its_own_lines(c):
    first = c.run(["python", "-c", WHO], show=False)
    second = c.run(["python", "-c", "import os; print(os.environ['CNNKIT_COORDINATOR'])"], show=False)
    assert second.tail("node1").startswith("node0:")
    assert second.tail("node1") != said(first, "node1")["coordinator"]


FAIL = """
import os, sys, time
if os.environ["CNNKIT_PROCESS"] == "1":
    print(*range(40), sep="\\n")
    sys.exit(3)
time.sleep(60 if sys.argv[1] == "wait" else 0)
"""


def test_a_failing_node_ends_the_job_and_its_last_lines_are_told(c, monkeypatch):
    monkeypatch.setattr("cnnkit.lab.jobs.PATIENCE", 0.3)
    with pytest.raises(
        JobFailed, match=r"node1 failed first: exit status 3\. Its last lines:\n  20\n"
    ) as failed:
        c.run(["python", "-c", FAIL, "wait"], show=False)
    assert failed.value.status == 3
    assert failed.value.statuses == {"node0": -signal.SIGTERM, "node1": 3, "node2": -signal.SIGTERM}
    assert "node0 killed by SIGTERM, node1 exit status 3" in str(failed.value)
    assert str(c.folder) in str(failed.value)


def test_the_others_go_on_when_asked_to(c):
    with pytest.raises(JobFailed) as failed:
        c.run(["python", "-c", FAIL, "finish"], show=False, keep_going=True)
    assert failed.value.statuses == {"node0": 0, "node1": 3, "node2": 0}


def test_a_program_that_is_not_there(c):
    with pytest.raises(FileNotFoundError, match="No such file or directory: 'pyhton'"):
        c.popen(["pyhton", "train.py"])
    with pytest.raises(ValueError, match="no command: expected a program and its arguments"):
        c.popen([])


def test_waiting_no_longer_than_asked(c):
    job = c.popen(["sleep", "60"])
    with pytest.raises(TimeoutError, match=r"still running after 0.1 s: node0, node1, node2"):
        job.wait(0.1)
    job.kill()
    assert set(job.statuses.values()) == {-signal.SIGTERM}


def test_links_are_shaped_at_both_ends_and_reshaped_while_up(c):
    def rates():
        return [[q["rate"] for end in ("node", "bridge") for q in c.shapers(i)[end]] for i in range(3)]

    assert rates() == [[8e7, 8e7]] * 3
    c.set_rate("1gbit", node=1)
    assert rates() == [[8e7, 8e7], [1e9, 1e9], [8e7, 8e7]]
    c.set_rate("10mbit")
    assert rates() == [[1e7, 1e7]] * 3
    c.set_rate(None, node=2)
    assert rates() == [[1e7, 1e7], [1e7, 1e7], []]
    c.set_rate("80mbit")
    assert rates() == [[8e7, 8e7]] * 3


SERVE = """
import socket
server = socket.create_server(("", 7000))
print("ready")
while True:
    end, _ = server.accept()
    while end.recv(1 << 16):
        pass
    end.sendall(b"k")
"""
SEND = """
import socket, sys, time
start = time.monotonic()
with socket.create_connection(("node1", 7000), timeout=float(sys.argv[2])) as end:
    end.sendall(bytes(int(sys.argv[1])))
    end.shutdown(socket.SHUT_WR)
    assert end.recv(1) == b"k"
print(time.monotonic() - start)
"""


def test_a_slow_link_is_slow_and_a_cut_one_dead(c, eventually):
    server = c.popen(["python", "-c", SERVE], nodes=[1])
    eventually(lambda: server.tail("node1") == "ready")

    def send(count, patience=60):
        job = c.popen(["python", "-c", SEND, str(count), str(patience)], nodes=[0])
        return job, job.wait(60)["node0"]

    c.set_rate("4mbit", node=1)
    job, status = send(400_000)
    assert status == 0
    # 0.8 s on the wire; what the bucket lets through at once is 5 kB. A busy machine only makes it longer.
    assert float(job.tail("node0")) > 0.75
    c.set_rate("80mbit", node=1)
    c.cut(1)
    job, status = send(10, patience=0.3)
    assert status == 1
    assert "Error" in job.tail("node0", 1)
    c.mend(1)
    assert send(10)[1] == 0
    c.kill(1)
    assert server.wait(20) == {"node1": -signal.SIGKILL}


SLEEP = "import time; time.sleep(60)"
BEAT = f"import subprocess, sys; print('up'); subprocess.run([sys.executable, '-c', '{SLEEP}'])"


def test_freezing_and_killing_take_a_nodes_children_along(c, marked, eventually):
    job = c.popen(["python", "-c", BEAT], env={"CNNKIT_TEST_MARK": os.environ["CNNKIT_TEST_MARK"]})

    def states():
        return sorted(state for state, words in marked().values() if "-c" in words)

    # A parent whose child is between vfork and exec can be stopped, but is not seen to be: it waits in state D.
    eventually(lambda: sum(SLEEP in words for _, words in marked().values()) == 3)
    assert len(states()) == 6
    c.freeze(2)
    eventually(lambda: states().count("T") == 2)
    assert states().count("T") == 2
    c.thaw(2)
    eventually(lambda: "T" not in states())
    c.kill(1)
    eventually(lambda: job.poll()["node1"] == -signal.SIGKILL)
    assert job.statuses["node0"] is None
    eventually(lambda: len(states()) == 4)
    again = c.popen(["python", "-c", WHO], nodes=[1])
    again.wait(30)
    assert (said(again, "node1")["process"], said(again, "node1")["processes"]) == ("1", "3")
    job.kill()
    eventually(lambda: states() == [])


def test_nodes_that_are_not_there(c):
    with pytest.raises(ValueError, match="no node 3: this lab has nodes 0 to 2"):
        c.cut(3)
    with pytest.raises(ValueError, match="nodes is 0: expected between 1 and 250"):
        Cluster(0)
    with pytest.raises(ValueError, match="workers_per_node is 0"):
        Cluster(2, workers_per_node=0)
    with pytest.raises(ValueError, match="gpus=True, but this process sees no GPU"):
        Cluster(2, gpus=True)


def test_cores_are_shared_out(tmp_path):
    own = sorted(os.sched_getaffinity(0))
    with make(nodes=2, pin=True, gpus=False, folder=tmp_path / "logs") as c:
        job = c.run(["python", "-c", WHO], show=False)
        cores = [said(job, name)["cores"] for name in c.names]
    assert cores == ([own[: len(own) // 2], own[len(own) // 2 :]] if len(own) > 1 else [own, own])
    assert (tmp_path / "logs" / "node1.log").exists(), "a folder that was asked for is kept"


def test_a_delay_is_there_or_its_lack_is_explained():
    try:
        c = make(nodes=2, rate="1gbit", delay="20ms", gpus=False)
    except OSError as refused:
        missing = str(refused)
    else:
        with c:
            assert [q["kind"] for q in c.shapers(0)["node"]] == ["netem", "tbf"]
            assert min(found["round_trip"] for found in check.measure(c, 0.5)) > 0.04
        return
    assert missing.startswith("this kernel has no sch_netem: sudo modprobe sch_netem")
    assert missing.endswith("or leave out the delay; the rate is shaped all the same")


def test_what_closed_stays_closed():
    c = make(nodes=1, gpus=False)
    job, folder = c.popen(["sleep", "60"]), c.folder
    assert folder.exists()
    c.close()
    c.close()
    assert job.statuses == {"node0": -signal.SIGKILL}
    assert not folder.exists()
    with pytest.raises(
        ConnectionError, match=r"the lab is closed; its processes were killed\. Start a new one"
    ):
        c.cut(0)


def test_the_keepers_death_is_noticed():
    with make(nodes=1, gpus=False) as c:
        job = c.popen(["sleep", "60"])
        c._keeper.kill()
        assert job.wait(20) == {"node0": -signal.SIGKILL}
        with pytest.raises(ConnectionError, match="the lab's keeper has ended"):
            c.popen(["true"])


SAVE = """
import time
try:
    print("up", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("saved")
"""
CLI = "import sys; from cnnkit.lab.cli import main; sys.exit(main(sys.argv[1:]))"


def test_an_interrupt_reaches_every_node(tmp_path, program, eventually):
    lab = program(CLI, "lab", "--nodes", 2, "--logs", tmp_path, "--", sys.executable, "-c", SAVE)
    logs = [tmp_path / f"node{i}.log" for i in range(2)]
    eventually(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
    time.sleep(0.1)
    lab.send_signal(signal.SIGINT)
    out, err = lab.communicate(timeout=30)
    assert lab.returncode == 130
    assert err == "cnnkit: interrupted\n"
    assert [log.read_text() for log in logs] == ["up\nsaved\n"] * 2
    assert sorted(out.splitlines()) == [f"node{i} | {line}" for i in range(2) for line in ("saved", "up")]


PLAIN = """
import ctypes, json, os
from cnnkit.lab.cluster import Cluster
# Whatever it starts now has no capability but CAP_SETFCAP, which root alone needs for its map of users.
for capability in set(range(64)) - {31}:
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
with Cluster(2, "50mbit", gpus=False) as c:
    job = c.run(["python", "-c", "import os, socket; print(os.getuid(), socket.gethostname())"], show=False)
    print(json.dumps([c.unprivileged, c.shapers(1), [job.tail(name) for name in c.names]]))
"""


def test_a_lab_without_privileges(program):
    done = program(PLAIN)
    out, err = done.communicate(timeout=60)
    if "does not allow network namespaces" in err:
        pytest.skip(err.splitlines()[-1])
    assert done.returncode == 0, err
    unprivileged, shapers, lines = json.loads(out)
    assert unprivileged is True
    assert [q["rate"] for end in shapers.values() for q in end] == [5e7, 5e7]
    assert lines == ["0 node0", "0 node1"]


def test_a_lab_where_namespaces_are_refused(program):
    refused = """
import ctypes, sys
from cnnkit.lab.cluster import Cluster
class Rules(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_char_p)]
# A filter that answers EPERM to unshare, as containers have: load the call's number, compare, return.
import platform, struct
number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
rules = b"".join(struct.pack("HBBI", *r) for r in [(32, 0, 0, 0), (21, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)])
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
held = Rules(4, rules)
assert libc.prctl(22, 2, ctypes.byref(held)) == 0
try:
    Cluster(2)
except PermissionError as error:
    print(error)
"""
    out, err = program(refused).communicate(timeout=30)
    assert out.startswith("this system does not allow network namespaces (Operation not permitted)"), err
