"""The host's GPUs, asked for in a child process that may hang without hanging the worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.domain.hosts.capability import Gpu

NVML = (sys.executable, "-P", "-m", "corral.worker.host.nvml")
TIMEOUT_S = 20.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_A_GPU = ("index", "name", "uuid", "memory_bytes", "compute_capability", "driver")


@dataclass(frozen=True)
class GpuState:
    """A GPU and how it is at the moment."""

    gpu: Gpu
    free_bytes: int | None
    used_bytes: int | None
    utilisation: float | None


@dataclass(frozen=True)
class GpuSurvey:
    """`gpus` is empty if there surely are none, None if that is not known; `note` says what went wrong."""

    gpus: tuple[GpuState, ...] | None
    note: str | None = None


class GpuProbe:
    """Asks in a child each time. `command` prints what `corral.worker.host.nvml` prints."""

    def __init__(self, command: Sequence[str] = NVML, *, timeout_s: float = TIMEOUT_S) -> None:
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._stuck: subprocess.Popen[str] | None = None

    def survey(self, environ: Mapping[str, str]) -> GpuSurvey:
        """Only what CUDA_VISIBLE_DEVICES in `environ` leaves visible. Never raises."""
        if self._stuck is not None and self._stuck.poll() is None:
            # A probe that even SIGKILL does not end hangs in the driver; another would hang too.
            return GpuSurvey(None, "the NVIDIA driver hangs")
        try:
            output = self._ask()
        except (OSError, UnicodeDecodeError) as error:
            return GpuSurvey(None, f"the GPU probe does not run: {error}")
        if output is None:
            return GpuSurvey(None, f"the NVIDIA driver did not answer within {self._timeout_s:g} s")
        found = _parse(output)
        return found if found.gpus is None else _visible(found, environ.get(_VISIBLE))

    def _ask(self) -> str | None:
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        try:
            return child.communicate(timeout=self._timeout_s)[0]
        except subprocess.TimeoutExpired:
            self._give_up(child)
            return None

    def _give_up(self, child: subprocess.Popen[str]) -> None:
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        try:
            child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._stuck = child


def _parse(output: str) -> GpuSurvey:
    try:
        answer = json.loads(output)
        if "error" in answer:
            return GpuSurvey(None, str(answer["error"]))
        if not answer["found"]:
            return GpuSurvey(())
        gpus = tuple(_state(gpu) for gpu in answer["gpus"])
        return GpuSurvey(gpus, "; ".join(answer["notes"]) or None)
    except (ValueError, KeyError, TypeError) as error:
        return GpuSurvey(None, f"the GPU probe ended without an answer: {type(error).__name__}: {error}")


def _state(found: dict[str, Any]) -> GpuState:
    gpu = Gpu(**{name: found[name] for name in _OF_A_GPU})
    return GpuState(gpu, found["free_bytes"], found["used_bytes"], found["utilisation"])


def _visible(found: GpuSurvey, named: str | None) -> GpuSurvey:
    """As CUDA reads the variable: indexes or beginnings of UUIDs, up to the first that names nothing."""
    if named is None or found.gpus is None:
        return found
    chosen: list[GpuState] = []
    for name in (part.strip() for part in named.split(",")):
        if name.startswith("MIG-"):
            return GpuSurvey(None, f"{_VISIBLE} names {name}; slices of a GPU are not known here")
        match = [state for state in found.gpus if _is_called(state.gpu, name)]
        if len(match) != 1:
            break
        chosen += [state for state in match if state not in chosen]
    return GpuSurvey(tuple(sorted(chosen, key=lambda state: state.gpu.index)), found.note)


def _is_called(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return gpu.index == int(name)
    return name.startswith("GPU-") and gpu.uuid is not None and gpu.uuid.startswith(name)
