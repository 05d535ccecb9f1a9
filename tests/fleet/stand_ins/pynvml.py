"""In the shape of NVIDIA's library, for hosts without its driver: as many GPUs as STAND_IN_GPUS says."""

from __future__ import annotations

import os
from types import SimpleNamespace

GIB = 1 << 30


NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


def nvmlInit() -> None:
    if not nvmlDeviceGetCount():
        raise NVMLError_LibraryNotFound("there are none")


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "580.1"


def nvmlDeviceGetCount() -> int:
    return int(os.environ.get("STAND_IN_GPUS", "0"))


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(handle: int) -> str:
    return "NVIDIA H100"


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle}0000000-0000"


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(total=80 * GIB, free=79 * GIB, used=GIB)


def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, int]:
    return (9, 0)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=0)


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return 30


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    return 70_000
