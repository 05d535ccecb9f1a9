"""What takes space on the server's disk."""

from __future__ import annotations

from pydantic import Field

from corral.wire.base import Answer


class DiskUse(Answer):
    """`kind` is that of an artifact, `log` or `metric`. Equal files are counted wherever they are named."""

    project: str
    kind: str
    entries: int
    bytes: int


class ProjectDisk(Answer):
    """What a project's files take on the disk, each counted once."""

    project: str
    files: int
    bytes: int
    loose_bytes: int = Field(
        0, description="Of these what nothing names any more: the next collection takes it."
    )


class RunDisk(Answer):
    run_id: str
    name: str | None = None
    project: str | None = None
    state: str | None = None
    bytes: int


class DiskAnswer(Answer):
    free_bytes: int | None = None
    database_bytes: int | None = None
    projects: list[ProjectDisk] = []
    kinds: list[DiskUse] = []
    runs: list[RunDisk] = Field([], description="Those that take most, artifacts and logs together.")


class CollectAnswer(Answer):
    """What was deleted."""

    logs: int
    uploads: int
    blobs: int
    partials: int
