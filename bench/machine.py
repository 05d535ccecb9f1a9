"""The machine that the figures are of, and how much of it others used meanwhile."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Machine:
    cores: int
    ram_gib: float
    fsync_p50_ms: float
    filesystem: str
    python: str
    sqlite: str
    kernel: str

    def lines(self) -> list[str]:
        return [
            f"{self.cores} cores, {self.ram_gib:.0f} GiB RAM, {self.kernel}",
            f"disk: {self.filesystem}, append of 4 KiB + fsync: p50 {self.fsync_p50_ms:.2f} ms in this run",
            f"Python {self.python}, SQLite {self.sqlite}",
        ]


def look() -> Machine:
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        ram_gib=psutil.virtual_memory().total / 2**30,
        fsync_p50_ms=fsync_p50_ms(),
        filesystem=_filesystem(Path(tempfile.gettempdir())),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        kernel=f"{platform.system()} {platform.release()}",
    )


def fsync_p50_ms(count: int = 100) -> float:
    spent: list[float] = []
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - began)
    return statistics.median(spent) * 1000


def _filesystem(folder: Path) -> str:
    mounts = [p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda p: len(p.mountpoint)).fstype if mounts else "unknown"


class CpuWatch:
    """Cores that named processes used, and everybody else, from now until `end`."""

    def __init__(self, **pids: int) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._began = time.perf_counter()
        self._before = self._read()
        self._busy_before = _machine_busy_s()

    def end(self) -> dict[str, float]:
        """On average, by name; `others` is the rest of the machine."""
        wall = time.perf_counter() - self._began
        after = self._read()
        used = {name: (after[name] - self._before[name]) / wall for name in after}
        busy = (_machine_busy_s() - self._busy_before) / wall
        return {**used, "others": max(0.0, busy - sum(used.values()))}

    def _read(self) -> dict[str, float]:
        return {name: _cpu_s(process) for name, process in self._processes.items()}


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _machine_busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def others_busy(seconds: float = 1.0) -> float:
    """Cores in use while we do nothing."""
    before = _machine_busy_s()
    time.sleep(seconds)
    return (_machine_busy_s() - before) / seconds
