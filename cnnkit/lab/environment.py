"""What a job's processes find in their environment: who they are, and which cores and GPUs are theirs."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Everything else that NCCL reads is inherited, so that e.g. NCCL_DEBUG or NCCL_NVLS_ENABLE work as usual.
# One channel fills a cheap link; each one more keeps another multiprocessor from computing while it waits.
OVER_THE_LINK = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MAX_NCHANNELS": "1",
}


def process(
    rank: int,
    count: int,
    coordinator: str,
    *,
    devices: int = 1,
    gpus: Sequence[str] = (),
    cores: Sequence[int] = (),
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of one process of a job: the caller's, with its place in the job.

    Args:
        rank: its number, counted from 0.
        count: of processes in the job.
        coordinator: host:port where process 0 listens for the others.
        devices: how many CPU devices JAX shows it, when it has no GPU.
        gpus: those it may use, as CUDA numbers or UUIDs; none for CPU.
        cores: those it is pinned to, if any.
        more: further variables, which win.
    """
    # A proxy outside would be asked for the way to the coordinator.
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env |= {
        "CNNKIT_COORDINATOR": coordinator,
        "CNNKIT_PROCESS": str(rank),
        "CNNKIT_PROCESSES": str(count),
        # "python" is then the interpreter with the packages, also where no environment was activated.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "JAX_NUM_CPU_DEVICES": str(devices),
    }
    env |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {"JAX_PLATFORMS": "cpu"}
    if len(cores) == 1:
        # XLA sizes its pool by it; a single thread cannot wait for an exchange and compute beside it.
        env.setdefault("NPROC", "2")
    return env | dict(more or {})


def gpus() -> list[str]:
    """The GPUs that this process may use, without starting CUDA; none where JAX_PLATFORMS leaves them out."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name and name != "-1"]
    return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def deal_gpus(processes: int, each: int, found: Sequence[str]) -> list[list[str]]:
    """The GPUs of each process: so many each, none if there are none.

    Raises:
        ValueError: there are some, but too few.
    """
    if not found:
        return [[] for _ in range(processes)]
    if processes * each > len(found):
        raise ValueError(
            f"{processes} processes with {each} GPU{'s' * (each > 1)} each need {processes * each} GPUs; this "
            f"machine has {len(found)}. Ask for fewer, or for CPU devices: --cpu (gpus=False)"
        )
    return [list(found[i * each : (i + 1) * each]) for i in range(processes)]


def share(cores: Sequence[int], processes: int) -> list[list[int]]:
    """The cores shared out in runs; where there are fewer cores than processes, in turn.

    >>> share([0, 1, 2, 3, 4], 2)
    [[0, 1], [2, 3, 4]]
    >>> share([0, 1], 3)
    [[0], [1], [0]]
    """
    n = len(cores)
    if n < processes:
        return [[cores[i % n]] for i in range(processes)]
    return [list(cores[i * n // processes : (i + 1) * n // processes]) for i in range(processes)]


def own_cores() -> list[int]:
    """The cores this process may use.

    Raises:
        OSError: the system does not say, or cannot pin.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise OSError(f"pinning processes to cores is not possible on {sys.platform}; leave out --pin")
    return sorted(os.sched_getaffinity(0))
