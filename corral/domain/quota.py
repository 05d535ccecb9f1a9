"""What a project may use, and what it has used."""

from __future__ import annotations

from typing import NamedTuple


class Quota(NamedTuple):
    """None is without limit. `gpu_hours` is for a calendar month; `weight` is the share of the fleet."""

    project: str
    max_running: int | None = None
    max_gpus: int | None = None
    max_queued: int | None = None
    max_bytes: int | None = None
    gpu_hours: int | None = None
    weight: float = 1.0
    updated_at: float = 0.0
    updated_by: str = ""


class Hours(NamedTuple):
    """What a project's closed leases used in a month (`2026-11`, UTC)."""

    project: str
    month: str
    slot_s: float
    gpu_s: float
