"""The mesh of workers, joining a job, and what is said when that fails."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cnnkit.data import load
from cnnkit.layers import dense
from cnnkit.parallel import watch, workers
from cnnkit.parallel.meeting import roll_call
from cnnkit.train.run import Run

NAMES = ("CNNKIT_COORDINATOR", "CNNKIT_PROCESS", "CNNKIT_PROCESSES")
LAUNCHERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JOB_COMPLETION_INDEX")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in (*NAMES, *LAUNCHERS):
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_one_worker_for_each_device():
    team = workers.make()
    assert (team.count, team.local, team.platform) == (4, (0, 1, 2, 3), "cpu")
    assert (team.process, team.processes) == (0, 1)
    assert workers.make(2).local == (0, 1)
    rows = jax.device_put(np.arange(8.0).reshape(4, 2), team.rows)
    assert [shard.data.tolist() for shard in rows.addressable_shards] == [
        [[0, 1]],
        [[2, 3]],
        [[4, 5]],
        [[6, 7]],
    ]
    assert jax.device_put(np.ones(3), team.everywhere).addressable_shards[3].data.shape == (3,)


def test_too_many_workers_says_how_to_have_them():
    message = (
        r"5 workers were asked for, but JAX sees 4 cpu devices: set the environment variable "
        r'JAX_NUM_CPU_DEVICES=5, or call jax.config.update\("jax_num_cpu_devices", 5\) before'
    )
    with pytest.raises(ValueError, match=message):
        workers.make(5)
    for n in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"workers is {n}; it must be a whole number of at least 1"):
            workers.make(n)


def test_on_ones_own_joining_does_nothing(monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **k: pytest.fail("must not be called"))
    workers.join()
    workers.join("localhost:1", 0, 1)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    workers.join()
    workers.agree({"seed": 1})
    assert workers.gather(np.arange(3)).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("environment", "method"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"}, None),
        ({"KUBERNETES_SERVICE_HOST": "x", "JOB_COMPLETION_INDEX": "0"}, None),
    ],
)
def test_launchers_are_left_to_jax(monkeypatch, environment, method):
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **settings: calls.append(settings))
    monkeypatch.setattr(watch, "begin", lambda *watched: calls.append(watched))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    workers.join(timeout=90, silence=40)
    settings, (begun, patience) = calls
    assert settings == {
        "cluster_detection_method": method,
        "initialization_timeout": 90,
        "heartbeat_timeout_seconds": 30,
        "shutdown_timeout_seconds": 600,
    }
    assert (begun.processes, begun.silence, patience) == (1, 40, 600)


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_other_mpi_is_joined_through_mpi4py(monkeypatch, name):
    methods = []
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda **s: methods.append(s["cluster_detection_method"])
    )
    monkeypatch.setattr(watch, "begin", lambda *watched: None)
    monkeypatch.setenv(name, "2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    workers.join()
    assert methods == ["mpi4py"]
    monkeypatch.setenv("CNNKIT_PROCESSES", "1")
    workers.join()
    assert methods == ["mpi4py"], "CNNKIT_PROCESSES=1 keeps each process to itself"


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_mpi_without_mpi4py_says_what_to_do(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        RuntimeError, match=r"one of 2 MPI processes.*pip install mpi4py, or set CNNKIT_COORDINATOR"
    ):
        workers.join()


def test_a_run_joins_and_says_when_it_is_too_late(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    jnp.zeros(1).block_until_ready()
    with pytest.raises(RuntimeError, match=r"used JAX before it joined them: call cnnkit\.workers\.join\(\)"):
        Run(dense(10), load("digits"))


def test_half_a_place_is_an_error(monkeypatch):
    monkeypatch.setenv("CNNKIT_PROCESS", "1")
    with pytest.raises(ValueError, match="missing: CNNKIT_COORDINATOR, CNNKIT_PROCESSES"):
        workers.join()
    with pytest.raises(ValueError, match="process 2 of 2 makes no sense: processes are numbered from 0"):
        workers.join("localhost:1", 2, 2)
    with pytest.raises(ValueError, match="process x of 2 makes no sense"):
        workers.join("localhost:1", "x", 2)
    with pytest.raises(ValueError, match="coordinator 'localhost' is not host:port"):
        workers.join("localhost", 1, 2)


def call_roll(*members, timeout=5.0):
    """What each (process, processes) hears, called from threads of their own."""
    address, heard = f"127.0.0.1:{free_port()}", {}

    def member(key, process, processes):
        try:
            roll_call(address, process, processes, timeout)
            heard[key] = ""
        except RuntimeError as error:
            heard[key] = str(error).replace(address, "HERE")

    threads = [threading.Thread(target=member, args=(i, *m)) for i, m in enumerate(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [heard[i] for i in range(len(members))]


def test_roll_call_ends_when_all_are_there():
    # Longer than a test may take: it would not pass by waiting.
    assert call_roll((0, 3), (2, 3), (1, 3), timeout=10_000) == ["", "", ""]


def test_roll_call_names_who_is_missing_to_all_who_came():
    missing = "processes 2, 3 of 4 did not come to HERE within 0.5 s: look at their logs, and whether they reach that address"
    assert call_roll((0, 4), (1, 4), timeout=0.5) == [missing, missing]
    (nobody,) = call_roll((1, 2), timeout=0.5)
    assert nobody.startswith("process 1 of 2 did not find process 0 at HERE within 0.5 s")


def test_roll_call_finds_wrong_numbers():
    assert call_roll((0, 3), (1, 3), (1, 3)) == ["two processes say that they are process 1 of 3"] * 3
    assert call_roll((0, 2), (1, 3)) == ["process 1 counts 3 processes, process 0 counts 2"] * 2


def test_strangers_at_the_port_are_ignored():
    port = free_port()
    result = []

    def first():
        roll_call(f"127.0.0.1:{port}", 0, 2, 20)
        result.append("done")

    thread = threading.Thread(target=first)
    thread.start()
    for text in (b"GET / HTTP/1.0\n", b"[]\n", b""):
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                    stranger.sendall(text)
                break
            except OSError:
                time.sleep(0.05)
    roll_call(f"127.0.0.1:{port}", 1, 2, 20)
    thread.join()
    assert result == ["done"]


def test_a_port_in_use_is_said():
    with (
        socket.create_server(("", 0)) as taken,
        pytest.raises(RuntimeError, match=r"process 0 cannot listen at .*another job there"),
    ):
        roll_call(f"localhost:{taken.getsockname()[1]}", 0, 2, 1)


def test_two_processes_join_agree_and_exchange(tmp_path):
    """Two real processes over Gloo: every algorithm, every payload, bit-equal in both."""
    coordinator = f"127.0.0.1:{free_port()}"
    root = Path(__file__).parents[2]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(root)}
    environment |= {"CNNKIT_COORDINATOR": coordinator, "CNNKIT_PROCESSES": "2"}
    members = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("member.py")), str(tmp_path / f"{i}.json")],
            env=environment | {"CNNKIT_PROCESS": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        logs = [member.communicate(timeout=120)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    assert [member.returncode for member in members] == [0, 0], "\n".join(logs)
    for i in range(2):
        told = json.loads((tmp_path / f"{i}.json").read_text())
        assert (told["process"], told["processes"], told["count"], told["local"]) == (i, 2, 2, [i])
        assert told["platform"] == "cpu"
        assert told["same"]
        assert len(told["off"]) == 15
        assert max(told["off"].values()) < 2e-6
        assert told["differ"] == (
            "the processes of this job do not run the same: net.width is 9 in process 1 and 8 in process 0"
        )
