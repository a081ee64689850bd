"""GPU readings through NVML, each GPU found by its UUID or PCI address and never by its index."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

READINGS = ("utilization", "memory_used", "memory_total", "power", "temperature")
"""%, bytes, bytes, W and °C."""

_WHY = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU does not give it",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to read it",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: it fell off its bus or was reset",
    pynvml.NVML_ERROR_NOT_FOUND: "the GPU is no longer there",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver is installed",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML was shut down",
}
_WITHOUT_V2 = (
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
)
_GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_UNINITIALIZED)
_MIG = "MIG is on: NVML gives it for the whole GPU alone"


class Sample(NamedTuple):
    """What one device said at one moment.

    Args:
        device: how it reads, e.g. ``"GPU 3 NVIDIA H200"``.
        values: readings by name, in the units of `READINGS`.
        missing: why the other readings are not there, by name.
    """

    device: str
    values: dict[str, float]
    missing: dict[str, str]


class Identity(NamedTuple):
    """A GPU's UUID without its prefix, and its PCI address; "" where unknown."""

    uuid: str
    pci: str


def cuda_identity(ordinal: int) -> Identity:
    """Of the CUDA device with this number in this process, as the driver itself says.

    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER shift CUDA's numbers against NVML's; this cannot be shifted.

    Raises:
        OSError: the driver cannot be asked.
    """
    cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    device, raw, text = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), ordinal):
        raise OSError(f"the CUDA driver does not know device {ordinal}")
    # The second form gives a MIG slice's own UUID, the first that of the whole GPU.
    get = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    uuid = "" if get(ctypes.byref(raw), device) else _uuid_text(bytes(raw))
    pci = "" if cuda.cuDeviceGetPCIBusId(text, 32, device) else text.value.decode()
    return Identity(uuid, pci)


class Gpu:
    """One GPU, or one MIG slice of it.

    Args:
        nvml: the module pynvml, or what stands for it.
        find: gives its NVML handle; called again after the GPU was gone.
        name: how it reads.
    """

    def __init__(self, nvml: Any, find: Callable[[], Any], name: str) -> None:
        self.name = name
        self._nvml, self._find = nvml, find
        self._handle: Any = None

    def sample(self) -> Sample:
        """Every reading that can be had, and why the others cannot."""
        values: dict[str, float] = {}
        missing: dict[str, str] = {}
        try:
            handle = self._handle = self._handle or self._find()
        except (pynvml.NVMLError, Unmatched) as error:
            return Sample(self.name, {}, dict.fromkeys(READINGS, why(error)))
        n = self._nvml
        asked: tuple[tuple[tuple[str, ...], Callable[[], tuple[float, ...]]], ...] = (
            (("utilization",), lambda: (n.nvmlDeviceGetUtilizationRates(handle).gpu,)),
            (("memory_used", "memory_total"), lambda: _memory(n, handle)),
            (("power",), lambda: (n.nvmlDeviceGetPowerUsage(handle) / 1000,)),
            (("temperature",), lambda: (n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU),)),
        )
        for names, ask in asked:
            try:
                values |= dict(zip(names, map(float, ask())))
            except pynvml.NVMLError as error:
                if error.value in _GONE:
                    self._handle = None
                missing |= dict.fromkeys(names, self._why(error, handle))
        return Sample(self.name, values, missing)

    def _why(self, error: Any, handle: Any) -> str:
        unsupported = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return _MIG if error.value in unsupported and self._mig(handle) else why(error)

    def _mig(self, handle: Any) -> bool:
        """Whether it is a MIG slice, or a GPU that is cut into some."""
        for ask in (self._nvml.nvmlDeviceIsMigDeviceHandle, lambda h: self._nvml.nvmlDeviceGetMigMode(h)[0]):
            try:
                if ask(handle):
                    return True
            except pynvml.NVMLError:
                continue
        return False


class Nvml:
    """NVML from opening to closing.

    Args:
        nvml: the module pynvml, or what stands for it.
        identify: CUDA's number of a device -> its `Identity`.
    """

    def __init__(self, nvml: Any = pynvml, identify: Callable[[int], Identity] = cuda_identity) -> None:
        self._nvml, self._identify = nvml, identify
        self.why_none = ""
        try:
            nvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.why_none = why(error)

    def close(self) -> None:
        """Let NVML go."""
        if not self.why_none:
            self.why_none = "NVML was shut down"
            self._nvml.nvmlShutdown()

    def all(self) -> list[Gpu]:
        """Every GPU of this machine that may be read, by NVML's numbers; none without a driver."""
        if self.why_none:
            return []
        made = []
        for i in range(self._nvml.nvmlDeviceGetCount()):
            find = lambda i=i: self._nvml.nvmlDeviceGetHandleByIndex(i)
            made.append(Gpu(self._nvml, find, f"GPU {i} {self._named(find)}".strip()))
        return made

    def of(self, device: Any) -> Gpu:
        """The GPU that a JAX device is.

        Args:
            device: with ``id``, ``device_kind`` and ``local_hardware_id``.
        """
        name = f"GPU {device.id} {device.device_kind}"
        return Gpu(self._nvml, lambda: self._handle_of(device), name)

    def _handle_of(self, device: Any) -> Any:
        if self.why_none:
            raise Unmatched(self.why_none)
        try:
            identity = self._identify(device.local_hardware_id)
        except (OSError, AttributeError) as error:
            raise Unmatched(f"it cannot be told which GPU this is ({error})") from None
        n = self._nvml
        ways: list[tuple[Callable[[str], Any], str]] = []
        if identity.uuid:
            by_uuid = n.nvmlDeviceGetHandleByUUID
            ways = [(by_uuid, f"GPU-{identity.uuid}"), (by_uuid, f"MIG-{identity.uuid}")]
        if identity.pci:
            ways.append((n.nvmlDeviceGetHandleByPciBusId, identity.pci))
        failed: Exception = Unmatched("the CUDA driver names neither its UUID nor its PCI address")
        for find, key in ways:
            try:
                return find(key)
            except pynvml.NVMLError as error:
                failed = error
        raise failed

    def _named(self, find: Callable[[], Any]) -> str:
        try:
            return str(self._nvml.nvmlDeviceGetName(find()))
        except pynvml.NVMLError:
            return ""


class Unmatched(Exception):
    """A device for which NVML has no handle; the text is the reason."""


def why(error: Exception) -> str:
    """An error of NVML as a reason that a person can read."""
    return _WHY.get(getattr(error, "value", None), str(error))


def _memory(nvml: Any, handle: Any) -> tuple[float, float]:
    """Used and total bytes, what the driver keeps for itself left out of the used ones, as nvidia-smi does."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _WITHOUT_V2:
            raise
        info = nvml.nvmlDeviceGetMemoryInfo(handle)  # the driver is older than the second form
    return info.used, info.total


def _uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
