"""Faults of a cluster while a network trains on it: each ends in recovery, or in a clear error in bounded time."""

import math
import time
from pathlib import Path

import pytest

from cnnkit.lab import cluster
from cnnkit.record.rows import Record

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("allowed")]

BATCHES = 26  # of 8 examples, in an epoch of 203
HANGS = 200  # seconds after which a job that should have ended by itself hangs, however busy the machine
PROGRAM = """
import sys
from cnnkit.parallel import workers
workers.join(timeout=60, silence=float(sys.argv[3]))
from cnnkit.data import load
from cnnkit.train import loop
from cnnkit.train.run import Run
from tests.train.member import Acts, net
loop.TICK = 1e-4  # a round a dispatch
data = load("digits").take(train=203, test=101)
Run(net(), data, batch=8, fetch=2, folder=sys.argv[1], epochs=int(sys.argv[2]), checkpoint_every=0.1, watch=Acts(sleep=0.02)).fit()
"""


@pytest.fixture(scope="module")
def lab(allowed):
    with cluster(nodes=2, rate="100mbit", gpus=False) as made:
        yield made


@pytest.fixture
def train(lab, tmp_path):
    """Starts a training on both nodes, and returns once it is under way."""

    def start(epochs, silence):
        root = str(Path(__file__).parents[2])
        command = ["python", "-c", PROGRAM, str(tmp_path / "run"), str(epochs), str(silence)]
        job = lab.popen(command, env={"PYTHONPATH": root})
        end = time.monotonic() + 100
        while job.poll(0.05) and job.running and job.tail("node0", 1000).count("round") < 8:
            assert time.monotonic() < end, job.tail("node0")
        return job

    yield start
    lab.set_rate("100mbit")
    for node in (0, 1):
        lab.kill(node)


def whole(folder, epochs=None):
    """Checks that every epoch on record is all there, and returns their number."""
    record = Record(folder)
    done = len(record.epochs())
    assert [row["examples"] for row in record.epochs()] == [203 * (i + 1) for i in range(done)]
    steps = [0] * (done + 1)
    for row in record.rounds():
        steps[math.ceil(row["epochs"] - 1e-6) - 1] += sum(row["steps"])
    assert steps[:done] == [BATCHES] * done
    assert epochs in (None, done)
    return done


@pytest.mark.long
def test_a_lost_node_ends_the_job_which_goes_on_when_it_is_back(lab, train, tmp_path):
    job = train(4, silence=20)
    lab.kill(1)
    statuses = job.wait(HANGS)
    assert statuses["node1"] == -9
    assert statuses["node0"] == 1
    assert "process 1 of 2 has ended" in job.tail("node0")
    assert "start the job again, with as many processes or fewer" in job.tail("node0")
    before = whole(tmp_path / "run")
    again = train(4, silence=20)
    assert set(again.wait(HANGS).values()) == {0}
    assert whole(tmp_path / "run", 4) > before


@pytest.mark.parametrize("frozen", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_frozen_node_is_given_up_by_name(lab, train, tmp_path, frozen):
    job = train(400, silence=3)
    lab.freeze(frozen)
    other = job.names[1 - frozen]
    end = time.monotonic() + HANGS
    while job.poll(0.1)[other] is None:
        assert time.monotonic() < end, job.tail(other)
    assert job.statuses[other] == 1
    assert (
        f"process {frozen} of 2 has not been heard of for 3 s: it hangs, or its link is cut or too slow"
        in job.tail(other)
    )
    lab.thaw(frozen)
    # What was frozen finds itself alone, and ends too.
    assert job.wait(HANGS)[job.names[frozen]] != 0
    whole(tmp_path / "run")


@pytest.mark.long
def test_a_link_that_was_cut_for_ten_seconds_costs_ten_seconds(lab, train, tmp_path):
    job = train(4, silence=20)
    lab.cut(1)
    time.sleep(10)
    assert job.running
    lab.mend(1)
    assert set(job.wait(HANGS).values()) == {0}, job.tail("node0")
    whole(tmp_path / "run", 4)


@pytest.mark.long
def test_a_link_at_a_kilobit_is_too_slow_and_said_to_be(lab, train, tmp_path):
    job = train(400, silence=3)
    lab.set_rate("1kbit")
    # What gets through of the signs of life, and when TCP gives up, is chance: 10 to 40 s have been seen.
    assert 0 not in job.wait(HANGS).values()
    told = job.tail("node0", 1000) + job.tail("node1", 1000)
    # JAX's own connections may be the first to break.
    assert "its link" in told or "the JAX distributed service detected fatal errors" in told, told
    whole(tmp_path / "run")
