"""What a job's processes find in their environment."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from cnnkit.lab import environment


def test_a_process_knows_its_place(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://elsewhere:3128")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    env = environment.process(1, 4, "node0:20001", devices=2, more={"MORE": "x"})
    assert env["CNNKIT_COORDINATOR"] == "node0:20001"
    assert (env["CNNKIT_PROCESS"], env["CNNKIT_PROCESSES"]) == ("1", "4")
    assert (env["JAX_PLATFORMS"], env["JAX_NUM_CPU_DEVICES"]) == ("cpu", "2")
    assert (env["NCCL_NVLS_ENABLE"], env["MORE"]) == ("0", "x")
    assert "HTTPS_PROXY" not in env
    assert Path(shutil.which("python", path=env["PATH"])).parent == Path(sys.executable).parent


def test_a_process_with_gpus(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    env = environment.process(0, 1, "x:1", devices=2, gpus=["4", "5"])
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "JAX_PLATFORMS" not in env


def test_a_process_on_one_core_has_two_threads_unless_told(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    assert environment.process(0, 1, "x:1", cores=[5])["NPROC"] == "2"
    assert "NPROC" not in environment.process(0, 1, "x:1", cores=[5, 6])
    assert environment.process(0, 1, "x:1", cores=[5], more={"NPROC": "1"})["NPROC"] == "1"
    monkeypatch.setenv("NPROC", "3")
    assert environment.process(0, 1, "x:1", cores=[5])["NPROC"] == "3"


def test_gpus_are_those_left_visible(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,MIG-1b2c,7")
    assert environment.gpus() == ["3", "MIG-1b2c", "7"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert environment.gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert environment.gpus() == []


def test_gpus_are_dealt_out():
    assert environment.deal_gpus(2, 2, ["0", "1", "2", "3", "4"]) == [["0", "1"], ["2", "3"]]
    assert environment.deal_gpus(3, 1, []) == [[], [], []]
    with pytest.raises(
        ValueError, match=r"3 processes with 1 GPU each need 3 GPUs; this machine has 2.*--cpu"
    ):
        environment.deal_gpus(3, 1, ["0", "1"])


def test_pinning_where_it_is_impossible(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with pytest.raises(OSError, match="pinning processes to cores is not possible"):
        environment.own_cores()
