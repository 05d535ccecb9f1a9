"""Volumes: named folders that are kept as snapshots."""

from __future__ import annotations

from pydantic import Field

from corral.wire.artifacts import FileRecord
from corral.wire.base import Answer, AnswerPage, Strict


class VolumeCommit(Strict):
    """The whole folder as it should be; `base` is the version that was changed, 0 the empty folder."""

    base: int = Field(ge=0, lt=2**31)
    files: list[FileRecord] = Field(max_length=200_000)


class VolumeVersionView(Answer):
    """Version 0 is the empty folder, and has no artifact. `parent` is what its maker had seen."""

    volume: str
    project: str
    version: int
    parent: int = 0
    artifact_id: str | None = None
    digest: str | None = None
    files: int = 0
    bytes: int = 0
    created_at: float | None = None
    created_by: str | None = None


class VolumeView(Answer):
    """`head` is the newest version."""

    project: str
    name: str
    head: int
    files: int = 0
    bytes: int = 0
    created_at: float
    created_by: str
    changed_at: float


class VolumeDetail(VolumeView):
    """`versions` that are still kept, the newest first."""

    versions: list[VolumeVersionView] = []


class VolumePage(AnswerPage[VolumeView]): ...
