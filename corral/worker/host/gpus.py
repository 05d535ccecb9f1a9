"""The host's GPUs, asked for in a child process that may hang without hanging the worker."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.domain.hosts.capability import Gpu

NVML = (sys.executable, "-P", "-m", "corral.worker.host.nvml")
CUDA = (sys.executable, "-P", "-m", "corral.worker.host.cuda")
TIMEOUT_S = 20.0
# To start CUDA takes a second for each GPU, and longer on a busy host.
CUDA_TIMEOUT_S = 120.0
TRY_AGAIN_S = 60.0
_HANGS = f"CUDA did not start within {CUDA_TIMEOUT_S:g} s"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_THE_MOMENT = ("free_bytes", "used_bytes", "utilisation", "temperature_c", "power_w")
_OF_A_GPU = ("index", "name", "uuid", "memory_bytes", "compute_capability", "driver")


@dataclass(frozen=True)
class GpuState:
    """A GPU and how it is at the moment."""

    gpu: Gpu
    free_bytes: int | None
    used_bytes: int | None
    utilisation: float | None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class GpuSurvey:
    """`gpus` is empty if there surely are none, None if that is not known; `note` says what went wrong."""

    gpus: tuple[GpuState, ...] | None
    note: str | None = None


@dataclass(frozen=True)
class CudaTrial:
    """What came of starting CUDA. `seen` are the UUIDs and drivers that it was tried for."""

    seen: tuple[tuple[str | None, str | None], ...]
    at: float
    error: str | None
    # By UUID: why it cannot be used, or None.
    gpus: Mapping[str, str | None]

    @property
    def broken(self) -> bool:
        return self.error is not None or any(self._why(uuid) for uuid, _ in self.seen)

    def left_of(self, found: GpuSurvey) -> GpuSurvey:
        if self.error is not None:
            return GpuSurvey(None, self.error)
        left, notes = [], [found.note] if found.note else []
        for state in found.gpus or ():
            if (why := self._why(state.gpu.uuid)) is None:
                left.append(state)
            else:
                notes.append(f"GPU {state.gpu.index} is left out: {why}")
        return GpuSurvey(tuple(left), "; ".join(notes) or None)

    def _why(self, uuid: str | None) -> str | None:
        """One whose UUID the driver does not tell cannot be found here, and is believed."""
        return None if uuid is None else self.gpus.get(uuid, "CUDA does not see it")


class GpuProbe:
    """Asks in a child each time. `command` prints what `corral.worker.host.nvml` prints.

    `cuda`, if given, prints what `corral.worker.host.cuda` prints. It is asked once for the same GPUs and
    driver, and again while something is broken: what cannot be used does not count.
    """

    def __init__(
        self,
        command: Sequence[str] = NVML,
        *,
        cuda: Sequence[str] | None = None,
        timeout_s: float = TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = tuple(command)
        self._cuda = None if cuda is None else tuple(cuda)
        self._timeout_s = timeout_s
        self._now = now
        self._stuck: subprocess.Popen[str] | None = None
        self._trial: CudaTrial | None = None
        self._trying = threading.Lock()

    def survey(self, environ: Mapping[str, str]) -> GpuSurvey:
        """Only what CUDA_VISIBLE_DEVICES in `environ` leaves visible. Never raises."""
        if self._stuck is not None and self._stuck.poll() is None:
            # A probe that even SIGKILL does not end hangs in the driver; another would hang too.
            return GpuSurvey(None, "the NVIDIA driver hangs")
        try:
            output = self._ask(self._command, self._timeout_s)
        except (OSError, UnicodeDecodeError) as error:
            return GpuSurvey(None, f"the GPU probe does not run: {error}")
        if output is None:
            return GpuSurvey(None, f"the NVIDIA driver did not answer within {self._timeout_s:g} s")
        found = self._usable(_parse(output), environ)
        return found if found.gpus is None else _visible(found, environ.get(_VISIBLE))

    def _usable(self, found: GpuSurvey, environ: Mapping[str, str]) -> GpuSurvey:
        """Without the GPUs on which CUDA does not start."""
        if self._cuda is None or not found.gpus:
            return found
        seen = tuple((state.gpu.uuid, state.gpu.driver) for state in found.gpus)
        with self._trying:
            known = self._trial
            again = known is not None and known.broken and self._now() - known.at >= TRY_AGAIN_S
            if known is None or known.seen != seen or again:
                known = self._trial = self._try(self._cuda, seen, environ)
        return known.left_of(found)

    def _try(
        self,
        command: Sequence[str],
        seen: tuple[tuple[str | None, str | None], ...],
        environ: Mapping[str, str],
    ) -> CudaTrial:
        env = {name: value for name, value in environ.items() if name != _VISIBLE}
        error: str | None
        try:
            output = self._ask(command, CUDA_TIMEOUT_S, env or None)
            answer: dict[str, Any] = {"error": _HANGS} if output is None else json.loads(output)
            error, gpus = answer.get("error"), answer.get("gpus", {})
        except (OSError, ValueError) as failure:
            error, gpus = f"CUDA does not start: {failure}", {}
        return CudaTrial(seen, self._now(), error, gpus)

    def _ask(
        self, command: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
    ) -> str | None:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env=env,
        )
        try:
            return child.communicate(timeout=timeout_s)[0]
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
    return GpuState(gpu, **{name: found.get(name) for name in _OF_THE_MOMENT})


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
