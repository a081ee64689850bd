"""Fifty labs, twenty of them killed at random moments: nothing is left after the next start."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cnnkit.lab import cluster

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("allowed")]

HOLD = """
import time
from cnnkit.lab.cluster import Cluster
c = Cluster(2, "100mbit", gpus=False)
job = c.popen(["sh", "-c", "sleep 60 & sleep 60"])
time.sleep(60)
"""


@pytest.mark.long
def test_fifty_labs_leave_nothing(tmp_path, program, marked, eventually, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = system()
    for i in range(20):
        kill_one(random.Random(i), program(HOLD), marked)
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(run_one, range(30))) == {0}
    eventually(lambda: not marked())
    assert list(tmp_path.iterdir()) == []
    assert system() == before


def run_one(i):
    with cluster(nodes=2, rate="100mbit", gpus=False) as c:
        return c.run(["true"], show=False).statuses["node1"]


def kill_one(draw, holder, marked):
    """Kill the lab's owner, its keeper, or both, some time before or after it is ready."""
    time.sleep(draw.uniform(0.0, 0.5))
    victims = draw.choice(["owner", "keeper", "both"])
    keepers = [pid for pid, (_, words) in marked().items() if any("lab.keeper" in word for word in words)]
    for pid in ([holder.pid] if victims != "keeper" else []) + (keepers if victims != "owner" else []):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    holder.kill()
    holder.communicate()


def system():
    """What a lab could leave on the machine itself: interfaces, named namespaces, mounts."""
    named = Path("/run/netns")
    return (
        sorted(os.listdir("/sys/class/net")),
        sorted(named.iterdir()) if named.exists() else [],
        Path("/proc/self/mounts").read_text(),
    )


def test_what_a_killed_keeper_left_goes_with_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    first = cluster(nodes=1, gpus=False)
    first._keeper.kill()
    first.close()
    assert first.folder.exists(), "nobody was left to remove it"
    with cluster(nodes=1, gpus=False) as second, cluster(nodes=1, gpus=False) as third:
        assert not first.folder.exists()
        assert second.folder.exists()
        assert third.folder.exists()
        assert second.folder.parent == tmp_path
