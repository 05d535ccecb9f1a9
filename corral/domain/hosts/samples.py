"""How a host is at a moment: how busy its processors, memory and GPUs are. Unknown is None, never zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from corral.domain.ids import HostId

# More than any machine has; a sample of more would be of no use to anybody.
MOST_GPUS = 64


@dataclass(frozen=True)
class GpuSample:
    """`utilisation` is between 0 and 1, the temperature in degrees Celsius, the power in watts."""

    index: int
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class HostSample:
    """`cpu` is the share of all processors that was busy, between 0 and 1."""

    cpu: float | None = None
    ram_used_bytes: int | None = None
    ram_bytes: int | None = None
    gpus: tuple[GpuSample, ...] = ()


class HostSampleRecord(NamedTuple):
    """The mean of about a minute, as JSON; `at` is the beginning of the minute in which it came."""

    host_id: HostId
    at: float
    sample: str


def mean_of(readings: Sequence[HostSample]) -> HostSample:
    """Of each number the mean of what is known of it; a GPU counts where it was seen."""
    seen: dict[int, list[GpuSample]] = {}
    for reading in readings:
        for gpu in reading.gpus:
            seen.setdefault(gpu.index, []).append(gpu)
    return HostSample(
        cpu=_mean(one.cpu for one in readings),
        ram_used_bytes=_whole(_mean(one.ram_used_bytes for one in readings)),
        ram_bytes=_whole(_mean(one.ram_bytes for one in readings)),
        gpus=tuple(_gpu(index, found) for index, found in sorted(seen.items())),
    )


def _gpu(index: int, found: Sequence[GpuSample]) -> GpuSample:
    means = {
        field.name: _mean(getattr(one, field.name) for one in found)
        for field in fields(GpuSample)
        if field.name != "index"
    }
    used, total = _whole(means.pop("memory_used_bytes")), _whole(means.pop("memory_bytes"))
    return GpuSample(index, memory_used_bytes=used, memory_bytes=total, **means)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
