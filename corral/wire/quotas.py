"""Quotas of projects, and what they used."""

from __future__ import annotations

from pydantic import Field

from corral.wire.base import Answer, Strict

_MOST = 2**53


class QuotaRequest(Strict):
    """What is left out is without limit."""

    max_running: int | None = Field(None, ge=0, le=_MOST, description="Runs that run at once.")
    max_gpus: int | None = Field(None, ge=0, le=_MOST, description="GPUs that its runs hold at once.")
    max_queued: int | None = Field(None, ge=0, le=_MOST, description="Runs that wait, held ones included.")
    max_bytes: int | None = Field(None, ge=0, le=_MOST, description="Bytes that its artifacts take.")
    gpu_hours: int | None = Field(None, ge=0, le=10**9, description="GPU hours in a calendar month (UTC).")
    weight: float = Field(1.0, ge=0.001, le=1000, description="Its share of the fleet against others'.")


class QuotaView(Answer):
    project: str
    max_running: int | None = None
    max_gpus: int | None = None
    max_queued: int | None = None
    max_bytes: int | None = None
    gpu_hours: int | None = None
    weight: float = 1.0
    updated_at: float
    updated_by: str


class QuotaPage(Answer):
    items: list[QuotaView]


class UsageView(Answer):
    """`slot_hours` is how long its runs ran, each counted once; `gpu_hours` counts each GPU they held."""

    project: str
    slot_hours: float
    gpu_hours: float
    gpu_hours_limit: int | None = None
    running: int
    gpus: int


class UsageAnswer(Answer):
    month: str
    items: list[UsageView]
