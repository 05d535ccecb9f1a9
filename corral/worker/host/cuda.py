"""Starts CUDA on each GPU and prints as JSON what came of it; a program of its own, as it may hang or die.

A driver that answers questions (`nvml.py`) may still run nothing: a library of another version, a missing
device file, a card that has fallen over. Prints `{"error": ...}` if CUDA does not start at all, else
`{"gpus": {UUID: why it cannot be used, or null}}`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from typing import Any

LIBRARY = "libcuda.so.1"
TRIED_BYTES = 1 << 20
# Somebody else uses it, all of it or alone: that does not make it broken.
_IN_USE = {2, 46}


class CudaFailed(Exception):
    def __init__(self, cuda: Any, what: str, code: int) -> None:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        said = text.value.decode() if text.value else "unknown error"
        super().__init__(f"{what} fails with {code} ({said})")
        self.code = code


def survey(library: str) -> dict[str, Any]:
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        return {"error": f"CUDA cannot be used: {error}"}
    count = ctypes.c_int()
    try:
        _call(cuda, "cuInit", 0)
        _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
        return {"gpus": dict(_tried(cuda, index) for index in range(count.value))}
    except CudaFailed as error:
        return {"error": f"CUDA does not start: {error}"}


def _tried(cuda: Any, index: int) -> tuple[str, str | None]:
    device, name = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), index)
    _call(cuda, "cuDeviceGetUuid", name, device)
    try:
        _use(cuda, device)
        why = None
    except CudaFailed as error:
        why = None if error.code in _IN_USE else str(error)
    return f"GPU-{uuid.UUID(bytes=bytes(name))}", why


def _use(cuda: Any, device: ctypes.c_int) -> None:
    """A context and some memory: with less, a broken card goes unnoticed."""
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call(cuda, "cuCtxSetCurrent", context)
        _call(cuda, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(TRIED_BYTES))
        _call(cuda, "cuMemFree_v2", memory)
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def _call(cuda: Any, name: str, *arguments: Any) -> None:
    if code := getattr(cuda, name)(*arguments):
        raise CudaFailed(cuda, name, code)


if __name__ == "__main__":
    json.dump(survey(sys.argv[1] if len(sys.argv) > 1 else LIBRARY), sys.stdout)
