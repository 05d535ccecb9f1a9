"""Asks NVIDIA's driver about its GPUs and prints the answer as JSON; a program of its own.

The driver may hang, and using it leaves something open for as long as the process lives; so the worker
never loads it. Prints `{"found": false}` without the library, `{"error": ...}` if it fails, else
`{"found": true, "gpus": [...], "notes": [...]}`, with null for what the driver does not say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

Json = dict[str, Any]


def survey(nvml: Any) -> Json:
    """`nvml` is the pynvml module, or something in its shape."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return {"found": False}
    except nvml.NVMLError as error:
        return {"error": f"the NVIDIA driver does not start: {error}"}
    try:
        return _gpus(nvml)
    except nvml.NVMLError as error:
        return {"error": f"the NVIDIA driver does not answer: {error}"}
    finally:
        nvml.nvmlShutdown()


def _gpus(nvml: Any) -> Json:
    driver = _known(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion()))
    gpus: list[Json] = []
    notes: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(_gpu(nvml, index, handle) | {"driver": driver})
        except nvml.NVMLError as error:
            # One that fell off the bus leaves the others usable.
            notes.append(f"GPU {index} is left out: {error}")
    return {"found": True, "gpus": gpus, "notes": notes}


def _gpu(nvml: Any, index: int, handle: Any) -> Json:
    memory = _known(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    version = _known(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    rates = _known(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    milliwatts = _known(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _known(nvml, lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
        "compute_capability": version and f"{version[0]}.{version[1]}",
        "memory_bytes": memory and memory.total,
        "free_bytes": memory and memory.free,
        "used_bytes": memory and memory.used,
        "utilisation": rates and rates.gpu / 100,
        "temperature_c": _temperature(nvml, handle),
        "power_w": milliwatts and milliwatts / 1000,
    }


def _temperature(nvml: Any, handle: Any) -> Any:
    """By the newer call where both the driver and its client have it; the older one is to go."""
    names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
    for ask in (getattr(nvml, name) for name in names if hasattr(nvml, name)):
        found = _known(nvml, partial(ask, handle, nvml.NVML_TEMPERATURE_GPU))
        if found is not None:
            return found
    return None


def _known(nvml: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    json.dump(survey(pynvml), sys.stdout)
