"""The mesh of workers, and joining a job of several processes."""

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cnnkit.parallel import watch
from cnnkit.parallel.emulate import emulate  # noqa: F401  (handed on as cnnkit.workers.emulate)
from cnnkit.parallel.meeting import roll_call
from cnnkit.parallel.relay import Relay

AXIS = "worker"

HEARTBEAT_SECONDS = 30
"""A process that JAX has not heard of for so long is taken for dead, and ends the others."""

WATCHED_HEARTBEAT_SECONDS = 100
"""The same where a watch ends them first, by name; half of it is what JAX bears at least."""

SHUTDOWN_SECONDS = 600
"""How long processes that are done wait for one that is not, such as the one that draws the figures."""


@dataclass(frozen=True, eq=False)
class Workers:
    """The workers of a job: one for each device of a mesh with the axis ``"worker"``.

    Args:
        mesh: one axis; workers are numbered along it, process by process.
    """

    mesh: Mesh

    @property
    def count(self) -> int:
        """W, over all processes."""
        return self.mesh.size

    @property
    def local(self) -> tuple[int, ...]:
        """The workers that this process drives, in order."""
        here = jax.process_index()
        return tuple(i for i, d in enumerate(self.mesh.devices.flat) if d.process_index == here)

    @property
    def process(self) -> int:
        """This process's number."""
        return jax.process_index()

    @property
    def processes(self) -> int:
        """How many processes the job has."""
        return jax.process_count()

    @property
    def platform(self) -> str:
        """``cpu``, ``gpu`` or ``tpu``."""
        return self.mesh.devices.flat[0].platform

    @property
    def rows(self) -> NamedSharding:
        """The sharding of arrays [W, …] with a row on each worker."""
        return NamedSharding(self.mesh, P(AXIS))

    @property
    def everywhere(self) -> NamedSharding:
        """The sharding of arrays that every worker has whole."""
        return NamedSharding(self.mesh, P())


def make(n: int | None = None) -> Workers:
    """The mesh of workers.

    Args:
        n: how many, over all processes; as many as there are devices when left out. With several
            processes, each brings the same number.

    Raises:
        ValueError: more than there are devices (the text says how to get more), or no equal share.
    """
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    n = len(devices) if n is None else n
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"workers is {n!r}; it must be a whole number of at least 1")
    if n > len(devices):
        raise ValueError(_too_few(n, devices))
    processes = jax.process_count()
    if n < len(devices) and processes > 1:
        each = [[d for d in devices if d.process_index == p][: n // processes] for p in range(processes)]
        devices = [d for part in each for d in part]
        if len(devices) != n:
            raise ValueError(
                f"{n} workers cannot be dealt evenly to {processes} processes: take a multiple of {processes}, "
                "or leave workers out to have one for every device"
            )
    return Workers(Mesh(np.array(devices[:n]), (AXIS,), axis_types=(AxisType.Auto,)))


def _too_few(n: int, devices: list[Any]) -> str:
    kind = devices[0].platform
    there = (
        f"{n} workers were asked for, but JAX sees {len(devices)} {kind} device{'s' * (len(devices) != 1)}"
    )
    if kind == "cpu":
        return (
            f"{there}: set the environment variable JAX_NUM_CPU_DEVICES={n}, or call "
            f'jax.config.update("jax_num_cpu_devices", {n}) before anything else uses JAX, '
            "or start several processes"
        )
    return f"{there}: take fewer workers, or start processes on more machines (cnnkit launch, srun, mpirun)"


def join(
    coordinator: str | None = None,
    process: int | None = None,
    processes: int | None = None,
    timeout: float = 300.0,
    silence: float = watch.SILENCE,
) -> None:
    """Join the other processes of this job; on one's own, and the second time, it does nothing.

    A `Run` does it itself; a program that uses JAX before it makes a Run calls this first. Who belongs together is looked for in this order: the
    arguments; CNNKIT_COORDINATOR, CNNKIT_PROCESS and CNNKIT_PROCESSES, which ``cnnkit lab`` and
    ``cnnkit launch`` set; SLURM, MPI or Kubernetes, as JAX finds them. Processes on CPUs talk through
    Gloo, on NVIDIA GPUs through NCCL. CNNKIT_PROCESSES=1 alone keeps each process to itself, as where a
    launcher starts runs that have nothing to do with each other.
    A process that fails, dies, hangs or is cut off ends all others within a minute, with status 1, and they say
    which one it was: where the three were given from here on, elsewhere from the first Run on. One that is done
    stays until all are.

    Args:
        coordinator: ``host:port`` of process 0, where all reach it; its port must be free.
        process: this one's number, from 0.
        processes: how many there are.
        timeout: seconds to wait for the others.
        silence: seconds without a word from a process until those that wait for it give it up.

    Raises:
        ValueError: some of the three are missing or make no sense.
        RuntimeError: others did not come in time (the text names them); JAX was used before.
    """
    if jax.distributed.is_initialized():
        return
    given = _given(coordinator, process, processes)
    found = None if given else _launcher()
    if (given is None and found is None) or (given and given[2] == 1):
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    patience: dict[str, Any] = {
        "initialization_timeout": int(timeout),
        "heartbeat_timeout_seconds": HEARTBEAT_SECONDS,
        "shutdown_timeout_seconds": SHUTDOWN_SECONDS,
    }
    if given is None:
        _initialize(cluster_detection_method=found or None, **patience)
        watch.begin(watch.Watch(0, 1, silence=silence), SHUTDOWN_SECONDS)  # until `agree` makes one of all
        return
    coordinator, process, processes = given
    patience["heartbeat_timeout_seconds"] = int(max(WATCHED_HEARTBEAT_SECONDS, 2 * (silence + 30)))
    watching = watch.Watch(process, processes, silence=silence)
    port = watching.open() if process == 0 else None
    port = roll_call(*given, timeout, port)
    if process:
        host, _, there = coordinator.rpartition(":")
        watching.follow(host.strip("[]"), port)
        coordinator = Relay(host.strip("[]"), int(there), timeout).address
    watch.begin(watching, SHUTDOWN_SECONDS)
    _initialize(coordinator, processes, process, cluster_detection_method="deactivate", **patience)


def _initialize(*place: Any, **settings: Any) -> None:
    try:
        jax.distributed.initialize(*place, **settings)
    except RuntimeError as error:
        if "must be called before" not in str(error):
            raise
        raise RuntimeError(
            "this process belongs to a job of several, but used JAX before it joined them: "
            "call cnnkit.workers.join() before anything else"
        ) from error


def _given(
    coordinator: str | None, process: int | None, processes: int | None
) -> tuple[str, int, int] | None:
    """(coordinator, process, processes) from the arguments or the environment; None where nothing is said."""
    names = ("CNNKIT_COORDINATOR", "CNNKIT_PROCESS", "CNNKIT_PROCESSES")
    values: list[Any] = [
        os.environ.get(name) if argument is None else argument
        for name, argument in zip(names, (coordinator, process, processes), strict=True)
    ]
    if values == [None, None, None]:
        return None
    if values == [None, None, "1"]:
        return "", 0, 1
    missing = [name for name, value in zip(names, values, strict=True) if value in (None, "")]
    if missing:
        raise ValueError(
            f"joining a job needs {', '.join(names)} or join's arguments; missing: {', '.join(missing)}"
        )
    try:
        me, count = int(values[1]), int(values[2])
    except ValueError:
        me, count = -1, 0
    if not 0 <= me < count:
        raise ValueError(
            f"process {values[1]} of {values[2]} makes no sense: processes are numbered from 0 to one below their count"
        )
    return str(values[0]), me, count


def _launcher() -> str | None:
    """What started several processes, as JAX's method of finding the others, "" for its own choice; None if nothing."""
    environment = os.environ
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return ""
    if int(environment.get("OMPI_COMM_WORLD_SIZE", 1)) > 1 and "OMPI_MCA_orte_hnp_uri" in environment:
        return ""
    # JAX itself finds the first process of Open MPI up to version 4 alone; mpi4py knows every other MPI's.
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if int(environment.get(name, 1)) > 1:
            if importlib.util.find_spec("mpi4py") is None:
                raise RuntimeError(
                    f"this is one of {environment[name]} MPI processes, which JAX joins through the package mpi4py: "
                    "pip install mpi4py, or set CNNKIT_COORDINATOR, CNNKIT_PROCESS and CNNKIT_PROCESSES"
                )
            return "mpi4py"
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return ""
    return None


def agree(fingerprint: Mapping[str, Any]) -> None:
    """Stop, in all processes, unless all have the same fingerprint.

    A collective: every process calls it, from the thread that also makes all other collectives.

    Args:
        fingerprint: what must be the same, as plain data: net, data, seed, versions.

    Raises:
        ValueError: they differ; the text names what, and who has which.
    """
    if jax.process_count() == 1:
        return
    _watch()
    text = json.dumps(fingerprint, sort_keys=True, default=str).encode()
    digests = gather(np.frombuffer(hashlib.sha256(text).digest(), np.uint8))
    if (digests == digests[0]).all():
        return
    longest = int(gather(np.array([len(text)], np.int32)).max())
    padded = np.frombuffer(text.ljust(longest), np.uint8)
    said = [json.loads(row.tobytes()) for row in gather(padded)]
    differences = [
        f"{path} is {theirs!r} in process {p} and {ours!r} in process 0"
        for p, other in enumerate(said)
        for path, ours, theirs in differing(said[0], other)
    ]
    more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
    raise ValueError(f"the processes of this job do not run the same: {'; '.join(differences[:3])}{more}")


def _watch() -> None:
    """A watch of all, in a job that others have put together and that has none yet."""
    me, processes = jax.process_index(), jax.process_count()
    if watch.current.processes == processes:
        return
    found = watch.Watch(me, processes, silence=watch.current.silence)
    place = json.dumps([*watch.addresses(), found.open()]).encode() if me == 0 else b""
    host, others, port = json.loads(from_first(place))
    there = me == 0 or found.reach(host, others, port)
    if gather(np.array([there])).all():
        watch.begin(found, SHUTDOWN_SECONDS)
    else:  # as behind a firewall; then JAX ends those that wait in vain
        found.close()


def gather(row: np.ndarray) -> np.ndarray:
    """Every process's row, [processes, …], in all of them; rows have the same shape and dtype everywhere.

    A collective, with the same rule as `agree`; processes may have different numbers of devices.
    """
    processes, mesh = jax.process_count(), _of_processes()
    rows = jax.make_array_from_process_local_data(
        NamedSharding(mesh, P("process")), row[None], (processes, *row.shape)
    )
    with watch.current.exchange():
        same = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(rows)
        return np.asarray(same.addressable_data(0))


def from_first(content: bytes) -> bytes:
    """Process 0's bytes, in all processes; what the others give does not count.

    A collective, with the same rule as `agree`.
    """
    sizes = gather(np.array([len(content)], np.int32))
    mine = (
        np.frombuffer(content, np.uint8) if jax.process_index() == 0 else np.zeros(int(sizes[0, 0]), np.uint8)
    )
    mesh = _of_processes()
    rows = jax.make_array_from_process_local_data(
        NamedSharding(mesh, P("process")), mine[None], (jax.process_count(), len(mine))
    )
    # A sum with zeros, and not a gathering, which would need room for everyone's.
    add = jax.shard_map(
        lambda x: jax.lax.psum(x[0], "process"), mesh=mesh, in_specs=P("process"), out_specs=P()
    )
    with watch.current.exchange():
        return np.asarray(jax.jit(add)(rows).addressable_data(0)).tobytes()


def _of_processes() -> Mesh:
    """The first device of each process."""
    firsts = [
        min((d for d in jax.devices() if d.process_index == p), key=lambda d: d.id)
        for p in range(jax.process_count())
    ]
    return Mesh(np.array(firsts), ("process",), axis_types=(AxisType.Auto,))


def differing(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two pieces of plain data differ: (path, ours, theirs).

    >>> differing({"seed": 0, "net": {"width": 8}}, {"seed": 1, "net": {"width": 8}})
    [('seed', 0, 1)]
    """
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        pairs = [(f"{path}.{key}".lstrip("."), ours.get(key), theirs.get(key)) for key in keys]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    else:
        return [] if ours == theirs else [(path, ours, theirs)]
    return [found for key, a, b in pairs for found in differing(a, b, key)]
