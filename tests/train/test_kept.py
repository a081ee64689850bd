"""Compiled programs on disk: a second process takes them from there."""

import os
import subprocess
import sys
from pathlib import Path

import cnnkit

PROGRAM = """
import sys
import jax
import cnnkit as ck
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
print(ck.keep_compiled(sys.argv[1]))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((3, 3)))
print(any("cache_hits" in event for event in found))
"""


def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    where = tmp_path / "new" / "folder"
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    said = []
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM, str(where)]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, cwd=Path(cnnkit.__file__).parents[1]
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said == [[str(where), "False"], [str(where), "True"]]
    assert list(where.iterdir())
