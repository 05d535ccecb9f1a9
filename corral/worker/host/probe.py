"""What this machine has, and what of it is free at the moment. Unknown is None, never zero."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from corral.domain.hosts.capability import ENGINE_PACKAGES, Capability
from corral.domain.hosts.samples import MOST_GPUS, GpuSample, HostSample
from corral.version import __version__
from corral.worker.host.address import LOOPBACK
from corral.worker.host.cgroup import cpu_quota, memory_left, memory_limit
from corral.worker.host.gpus import GpuProbe, GpuState, GpuSurvey
from corral.worker.host.isolation import Isolation

log = logging.getLogger(__name__)

_ROOT = Path("/")
_GPUS = GpuProbe()
_SYSTEMS = {"Linux": "linux", "Darwin": "darwin", "Windows": "windows"}
_GIT_LIMIT_S = 5.0
_GPUS_OF_A_BEAT = 24
_ARCHES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class FreeResources:
    """What is free at the moment, our own runs' use included; for the check before a start, not for
    eligibility. GPU memory by index."""

    ram_bytes: int | None
    disk_bytes: int | None
    gpu_bytes: Mapping[int, int | None] | None


@dataclass(frozen=True)
class HostSnapshot:
    """Both at once: what there is, and what of it is free."""

    capability: Capability
    free: FreeResources


@dataclass(frozen=True)
class HostProbe:
    """Looks at this machine, within the limits of its container.

    `environ` is asked for CUDA_VISIBLE_DEVICES; `root` is where `proc` and `sys` are.
    """

    data_dir: Path
    labels: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    gpus: GpuProbe = _GPUS
    root: Path = _ROOT
    isolation: Isolation | None = None
    address: Callable[[], str] = lambda: LOOPBACK

    def capability(self) -> Capability:
        """Totals. Takes as long as a hanging driver's timeout at most."""
        found = self.gpus.survey(self.environ)
        if found.note:
            log.warning("%s", found.note)
        return self._capability(found)

    def snapshot(self) -> HostSnapshot:
        """For the check before a start: the driver is asked once for both."""
        found = self.gpus.survey(self.environ)
        return HostSnapshot(self._capability(found), self._free(found))

    def sample(self, *, with_gpus: bool) -> HostSample:
        """How busy it is: the processors since the last look, the rest at this moment.

        The driver is asked only `with_gpus`.
        """
        states = (self.gpus.survey(self.environ).gpus if with_gpus else None) or ()
        total, free = self._ram_bytes(), self.ram_free()
        return HostSample(
            cpu=min(1.0, psutil.cpu_percent() / 100),
            ram_used_bytes=None if total is None or free is None else max(0, total - free),
            ram_bytes=total,
            gpus=tuple(_gpu_sample(state) for state in states[:MOST_GPUS]),
        )

    def _ram_bytes(self) -> int | None:
        return _least(_known(lambda: psutil.virtual_memory().total) or None, memory_limit(self.root))

    def ram_free(self) -> int | None:
        """Bytes of memory that are free now. Page cache counts as free."""
        free = _least(_known(lambda: psutil.virtual_memory().available), memory_left(self.root))
        return None if free is None else max(0, free)

    def _capability(self, found: GpuSurvey) -> Capability:
        machine = platform.machine().lower()
        return Capability(
            hostname=socket.gethostname(),
            os=_SYSTEMS.get(platform.system(), platform.system().lower()),
            arch=_ARCHES.get(machine, machine),
            cores=usable_cores(
                physical=_known(lambda: psutil.cpu_count(logical=False)) or None,
                affinity=_known(_affinity),
                quota=cpu_quota(self.root),
            ),
            ram_bytes=self._ram_bytes(),
            disk_bytes=_known(lambda: shutil.disk_usage(_existing(self.data_dir)).total) or None,
            gpus=None if found.gpus is None else tuple(state.gpu for state in found.gpus),
            python=platform.python_version(),
            labels=tuple(self.labels),
            engine=engine_versions(),
            corral=build(),
            gpu_note=found.note,
            isolated=None if self.isolation is None else self.isolation.why_not is None,
            isolation_note=None if self.isolation is None else self.isolation.note,
            address=self.address(),
        )

    def _free(self, found: GpuSurvey) -> FreeResources:
        states = found.gpus
        return FreeResources(
            ram_bytes=self.ram_free(),
            disk_bytes=_known(lambda: shutil.disk_usage(_existing(self.data_dir)).free),
            gpu_bytes=None if states is None else {state.gpu.index: state.free_bytes for state in states},
        )


def engine_versions() -> dict[str, str | None]:
    """Versions of the training engine's packages in this Python. Importing them would take seconds."""
    return {name: _version(name) for name in ENGINE_PACKAGES}


def _version(name: str) -> str | None:
    try:
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ImportError, ValueError):
        # A folder of that name without a version is no installation.
        return None


def gpu_sample(indexes: Sequence[int], *, gpus: GpuProbe = _GPUS) -> dict[str, float]:
    """For a beat: `gpu0_utilisation` (0 to 1) and `gpu0_memory_used_bytes` of each; unknowns are left out.

    Starts no process without GPUs. A beat holds only so many numbers, and one with more would be refused.
    """
    indexes = indexes[:_GPUS_OF_A_BEAT]
    if not indexes:
        return {}
    sample: dict[str, float] = {}
    for state in gpus.survey({}).gpus or ():
        if state.gpu.index in indexes:
            if state.utilisation is not None:
                sample[f"gpu{state.gpu.index}_utilisation"] = state.utilisation
            if state.used_bytes is not None:
                sample[f"gpu{state.gpu.index}_memory_used_bytes"] = float(state.used_bytes)
    return sample


def _gpu_sample(state: GpuState) -> GpuSample:
    return GpuSample(
        index=state.gpu.index,
        utilisation=state.utilisation,
        memory_used_bytes=state.used_bytes,
        memory_bytes=state.gpu.memory_bytes,
        temperature_c=state.temperature_c,
        power_w=state.power_w,
    )


def usable_cores(*, physical: int | None, affinity: int | None, quota: float | None) -> int | None:
    """Physical cores, fewer where the process may not run on all of them or all of the time.

    A quota counts even if the cores are unknown: it is a promise of so much time.
    """
    if physical is None and quota is None:
        return None
    whole = None if quota is None else max(1, int(quota))
    return _least(physical, affinity, whole)


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _known(ask: Callable[[], int | None]) -> int | None:
    try:
        return ask()
    except (OSError, psutil.Error):
        return None


def _affinity() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _existing(path: Path) -> Path:
    """The folder, or the nearest above that is there: it decides on the file system."""
    absolute = path.absolute()
    return next((folder for folder in (absolute, *absolute.parents) if folder.exists()), absolute)


@cache
def build() -> str:
    """Which Corral this is: `0.1.0`, or `0.1.0+1a2b3c4d5e6f`. Never raises; asked once."""
    commit = _installed_commit() or _checkout_commit()
    return f"{__version__}+{commit[:12]}" if commit else __version__


def _installed_commit() -> str | None:
    """As pip notes it for `pip install git+https://...`."""
    try:
        said = importlib.metadata.distribution("corral").read_text("direct_url.json")
        found = json.loads(said or "{}").get("vcs_info", {}).get("commit_id")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError, OSError):
        return None
    return found if isinstance(found, str) else None


def _checkout_commit() -> str | None:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_GIT_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None
