"""What a host reports of itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corral.domain.hosts.capability import Capability, Gpu
from corral.wire.base import Name, PlainText, Strict
from corral.wire.spec.tables import SystemName


class GpuReport(Strict):
    index: int = Field(ge=0, le=4096)
    name: str = Field(max_length=128)
    uuid: str | None = Field(None, max_length=128)
    memory_bytes: int | None = Field(None, ge=0, lt=2**62)
    compute_capability: str | None = Field(None, pattern=r"^\d{1,3}\.\d{1,3}$")
    driver: str | None = Field(None, max_length=64)


class CapabilityReport(Strict):
    """Totals of the host; null is unknown, never zero."""

    hostname: str = Field(max_length=255)
    os: str = Field(max_length=32)
    arch: str = Field(max_length=32)
    cores: int | None = Field(None, ge=0, le=1_000_000)
    ram_bytes: int | None = Field(None, ge=0, lt=2**62)
    disk_bytes: int | None = Field(None, ge=0, lt=2**62)
    gpus: list[GpuReport] | None = Field(None, max_length=1024)
    python: str | None = Field(None, max_length=32)
    labels: list[Name] = Field(default_factory=list, max_length=64)
    engine: dict[Name, Annotated[str, Field(max_length=64)] | None] | None = Field(
        None, max_length=32, description="Versions of what the training engine needs; null is not installed."
    )

    corral: str | None = Field(None, max_length=128, description="The worker's version and commit.")
    gpu_note: Annotated[PlainText, Field(max_length=2000)] | None = Field(
        None, description="What went wrong when the GPUs were asked for."
    )
    system: dict[SystemName, bool] = Field(
        default={}, max_length=1024, description="Programs and packages that were asked for."
    )

    def capability(self) -> Capability:
        gpus = None if self.gpus is None else tuple(Gpu(**gpu.model_dump()) for gpu in self.gpus)
        return Capability(**{**self.model_dump(exclude={"gpus"}), "gpus": gpus, "labels": tuple(self.labels)})
