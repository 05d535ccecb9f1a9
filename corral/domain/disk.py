"""What takes space: by project, kind and run."""

from __future__ import annotations

from typing import NamedTuple

from corral.domain.ids import RunId


class KindUse(NamedTuple):
    project: str
    kind: str
    entries: int
    bytes: int


class ProjectUse(NamedTuple):
    project: str
    files: int
    bytes: int
    loose_bytes: int


class RunUse(NamedTuple):
    run_id: RunId
    bytes: int
