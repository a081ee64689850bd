"""The project's files beside the package: environment.yml, CITATION.cff, what continuous integration runs."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import cnnkit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = {"matplotlib": "matplotlib-base"}  # the same without a window system


def test_conda_gets_the_packages_and_versions_of_pip():
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["lab"], *extras["notebook"], *extras["dev"]]
    pip = dict(
        re.fullmatch(r"([\w-]+)(.*)", text).groups() for text in wanted if not text.startswith("cnnkit[")
    )
    lines = (ROOT / "environment.yml").read_text(encoding="utf-8").splitlines()
    conda = dict(m.groups() for m in (re.fullmatch(r" +- ([\w-]+)([<>=].*)", line) for line in lines) if m)
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda == {CONDA.get(name, name): version for name, version in pip.items()}


def test_the_citation_has_this_version_and_names_both_works():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {cnnkit.__version__}\n" in text
    assert PROJECT["version"] == cnnkit.__version__
    assert "基于多机多卡的卷积神经网络性能优化" in text
    assert "卷积神经网络并行训练的优化研究" in text


@pytest.mark.parametrize(
    ("user", "said"), [("0", "jupyter lab --allow-root notebooks"), ("1000", "jupyter lab  notebooks")]
)
def test_make_lab_lets_the_superuser_in(tmp_path, user, said):
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "lab"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.rstrip().endswith(said), done.stderr


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test ALL=1")
