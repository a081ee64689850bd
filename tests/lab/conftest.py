"""Labs for tests: skipped, with the reason, where the system does not allow them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cnnkit.lab.cluster import Cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def allowed():
    """Skips unless a lab with a shaped link can be made here."""
    try:
        Cluster(1, "1gbit", gpus=False).close()
    except (OSError, ImportError) as error:
        pytest.skip(str(error))


@pytest.fixture
def program():
    """Runs a Python text in a process of its own; returns the Popen."""
    started = []

    def run(text, *arguments, **more):
        argv = [sys.executable, "-c", text, *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        process = subprocess.Popen(argv, **streams | more)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def marked(monkeypatch):
    """Finds the processes that were started within this test, wherever they are: {number: (state, words)}."""
    mark = f"CNNKIT_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv(*mark.split("="))

    def find():
        found = {}
        for place in Path("/proc").iterdir():
            try:
                if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                    state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        found[int(place.name)] = state, (place / "cmdline").read_text().split("\0")
            except OSError:
                continue
        return found

    return find


@pytest.fixture(scope="session")
def eventually():
    """Waits for something that the system does in its own time."""

    def wait(true, seconds=20.0):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"still not so after {seconds:g} s"
            time.sleep(0.02)

    return wait
