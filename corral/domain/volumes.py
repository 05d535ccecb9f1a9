"""Named folders that are kept as snapshots, and how two changes of one folder become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from corral.domain.ids import ArtifactId

T = TypeVar("T")


class VolumeRecord(NamedTuple):
    """`head` is the newest version; 0 is the empty folder that every volume begins as."""

    project: str
    name: str
    head: int
    created_at: float
    created_by: str


class VolumeVersion(NamedTuple):
    """`parent` is the version that its maker had seen; the files are those of the artifact."""

    project: str
    name: str
    version: int
    parent: int
    artifact_id: ArtifactId
    created_at: float
    created_by: str


def merge(
    base: Mapping[str, T], theirs: Mapping[str, T], mine: Mapping[str, T]
) -> tuple[dict[str, T], list[str]]:
    """Both changes of `base`, and the paths that both changed, each in its own way.

    A file that is not there is as much a state as any content: to remove what another has changed is a
    conflict too.
    """
    made: dict[str, T] = {}
    conflicts: list[str] = []
    for path in base.keys() | theirs.keys() | mine.keys():
        was, other, own = base.get(path), theirs.get(path), mine.get(path)
        if own not in (was, other) and other != was:
            conflicts.append(path)
        kept = other if own == was else own
        if kept is not None:
            made[path] = kept
    return made, sorted(conflicts)
