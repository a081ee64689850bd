"""An NVML that does as it is told: GPUs in NVML's order, some cut into MIG slices, lost or forbidden."""

from types import SimpleNamespace

import pynvml

from cnnkit.notebook.nvml import Identity


class FakeNvml:
    """Stands for the module pynvml.

    Args:
        gpus: one dictionary a GPU, in NVML's order: uuid, pci, utilization, used, reserved, total,
            power (mW), temperature, ``mig`` (on), ``slice`` (is one), ``fails`` {"power": error code, …}.
        init: an error code that opening fails with.
        without_v2: the error code of a driver that lacks the second form of the memory's figures.
    """

    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, *gpus, init=None, without_v2=None):
        self.gpus, self.init, self.open = list(gpus), init, 0
        self.without_v2 = without_v2

    def nvmlInit(self):
        if self.init is not None:
            raise pynvml.NVMLError(self.init)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, i):
        return self.gpus[i]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return self._find("uuid", uuid)

    def nvmlDeviceGetHandleByPciBusId(self, pci):
        return self._find("pci", pci)

    def nvmlDeviceGetName(self, gpu):
        return gpu.get("name", "NVIDIA Fake")

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return SimpleNamespace(gpu=self._get(gpu, "utilization"))

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        used, total = self._get(gpu, "used"), self._get(gpu, "total")
        if version is None:  # the first form counts what the driver reserves as used
            return SimpleNamespace(used=used + gpu.get("reserved", 0), total=total)
        assert version == pynvml.nvmlMemory_v2
        if self.without_v2:
            raise pynvml.NVMLError(self.without_v2)
        return SimpleNamespace(used=used, reserved=gpu.get("reserved", 0), total=total)

    def nvmlDeviceGetPowerUsage(self, gpu):
        return self._get(gpu, "power")

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return self._get(gpu, "temperature")

    def nvmlDeviceIsMigDeviceHandle(self, gpu):
        return int(gpu.get("slice", False))

    def nvmlDeviceGetMigMode(self, gpu):
        if "mig" not in gpu:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(gpu["mig"]), int(gpu["mig"])]

    def _find(self, key, value):
        for gpu in self.gpus:
            if gpu.get(key) == value:
                return gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _get(self, gpu, name):
        code = gpu.get("lost") or gpu.get("fails", {}).get(name)
        if code:
            raise pynvml.NVMLError(code)
        return gpu[name]


def gpu(i, **changes):
    """A healthy GPU whose readings tell which one it is."""
    made = {"uuid": f"GPU-u{i}", "pci": f"0000:0{i}:00.0", "utilization": 10 * i + 5, "used": 10**9 * (i + 1)}
    made |= {"reserved": 676_331_520}
    return made | {"total": 80 * 10**9, "power": 1000 * (100 + i), "temperature": 40 + i} | changes


def device(ordinal, stats=None, platform="gpu"):
    """A JAX device with this CUDA number in its process."""
    return SimpleNamespace(
        id=ordinal,
        local_hardware_id=ordinal,
        platform=platform,
        device_kind="NVIDIA Fake",
        memory_stats=lambda: stats,
    )


def visible(*physical):
    """What the CUDA driver says under CUDA_VISIBLE_DEVICES=physical: number -> identity."""
    return lambda ordinal: Identity(f"u{physical[ordinal]}", f"0000:0{physical[ordinal]}:00.0")
