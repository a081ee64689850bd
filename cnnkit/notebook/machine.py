"""Readings of a process's devices: GPUs through NVML beside JAX's own memory figures, CPUs through psutil."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from cnnkit.notebook.nvml import READINGS, Nvml, Sample

JAX_READINGS = ("jax_memory", "jax_limit")
LEAST = 0.1  # seconds over which a CPU's utilization is taken


class Cpu:
    """The machine's processors and memory, and this process's share of both."""

    def __init__(self) -> None:
        self.name = f"CPU {psutil.cpu_count()} cores"
        self._process = psutil.Process()
        # The first call of each gives 0 and sets the point that the next one measures from.
        psutil.cpu_percent(None)
        self._process.cpu_percent(None)
        self._asked = time.monotonic()

    def sample(self) -> Sample:
        """Percent of all cores since the last sample, and bytes."""
        # Over a shorter time the counters have hardly ticked, and a busy machine reads 0 %.
        time.sleep(max(0.0, self._asked + LEAST - time.monotonic()))
        self._asked = time.monotonic()
        memory = psutil.virtual_memory()
        values = {
            "utilization": psutil.cpu_percent(None),
            "process": self._process.cpu_percent(None) / (psutil.cpu_count() or 1),
            "memory_used": float(memory.total - memory.available),
            "memory_total": float(memory.total),
            "process_memory": float(self._process.memory_info().rss),
        }
        return Sample(self.name, values, {})


class Accelerator:
    """A JAX device: NVML's readings where it is a GPU of NVIDIA's, and JAX's memory figures."""

    def __init__(self, device: Any, nvml: Nvml) -> None:
        self._device = device
        self._gpu = nvml.of(device) if device.platform in ("gpu", "cuda") else None
        self.name = self._gpu.name if self._gpu else f"{device.platform} {device.id} {device.device_kind}"

    def sample(self) -> Sample:
        """What can be had of both."""
        if self._gpu is not None:
            sample = self._gpu.sample()
        else:
            sample = Sample(self.name, {}, dict.fromkeys(READINGS, "NVML knows GPUs of NVIDIA alone"))
        stats, reason = _memory_stats(self._device)
        if stats is None:
            return sample._replace(missing=sample.missing | dict.fromkeys(JAX_READINGS, reason))
        own = {"jax_memory": float(stats["bytes_in_use"]), "jax_limit": float(stats.get("bytes_limit", 0))}
        return sample._replace(values=sample.values | own)


class Machine:
    """Everything to be read on this machine.

    Args:
        devices: JAX devices of this process; None reads every GPU that NVML sees and leaves JAX alone, which
            would take most of a GPU's memory when started.
        open_nvml: gives the `Nvml` to read through.
    """

    def __init__(self, devices: Sequence[Any] | None = None, open_nvml: Callable[[], Nvml] = Nvml) -> None:
        self._nvml = open_nvml()
        if devices is None:
            found: list[Any] = list(self._nvml.all())
        else:
            found = [Accelerator(d, self._nvml) for d in devices if d.platform != "cpu"]
        self._read = [*found, Cpu()]
        self.why_no_gpu = "" if found else self._nvml.why_none or "no GPU"

    def samples(self) -> list[Sample]:
        """One of each device, the CPU last."""
        return [device.sample() for device in self._read]

    def close(self) -> None:
        """Let NVML go."""
        self._nvml.close()


def _memory_stats(device: Any) -> tuple[dict[str, Any] | None, str]:
    try:
        stats = device.memory_stats()
    except Exception as error:  # each backend raises its own
        return None, f"JAX cannot say: {error}"
    return (stats, "") if stats else (None, "JAX keeps no memory figures for this device")
