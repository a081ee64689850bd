"""What the pages advise names what there is: variables and flags that JAX reads, choices that are explained."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jaxlib

from cnnkit.train.rules import MOMENTA, Rules

ROOT = Path(__file__).parents[1]


def test_the_flag_for_equal_numbers_on_a_gpu_is_one_that_xla_knows():
    (flag,) = set(re.findall(r"XLA_FLAGS=(--\w+=\w+)", (ROOT / "README.md").read_text()))
    assert "deterministic" in flag
    command = [sys.executable, "-c", "import jax; print(jax.numpy.zeros(1).sum())"]
    known = subprocess.run(
        command, env=os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
    )
    assert known.stdout == "0.0\n", known.stderr  # a flag that it does not know ends the process


def test_the_variable_for_the_memory_of_a_gpu_is_one_that_jax_reads():
    sources = [*Path(jaxlib.__file__).parent.glob("*.py"), *Path(jax.__file__).parent.rglob("*.py")]
    for page in (ROOT / "README.md", ROOT / "notebooks" / "00_start.py"):
        (name,) = set(re.findall(r"`(XLA_PYTHON_CLIENT_\w+)=false`", page.read_text()))
        assert any(name in source.read_text(encoding="utf-8") for source in sources)


def test_what_becomes_of_momentum_at_an_exchange_is_said_for_every_choice():
    said = re.search(r"    momentum: (.*?)\n        \w+[\w, ]*: ", Rules.__doc__, re.DOTALL).group(1)
    assert set(re.findall(r"``(\w+)``", said)) == set(MOMENTA)
