"""Where volumes and their versions are kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.volumes import VolumeRecord, VolumeVersion


class Volumes(Protocol):
    def insert(self, volume: VolumeRecord) -> bool:
        """False, and nothing is written, if the project has one of this name."""
        ...

    def get(self, project: str, name: str) -> VolumeRecord | None: ...

    def lock(self, project: str, name: str) -> VolumeRecord | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        ...

    def set_head(self, project: str, name: str, head: int) -> None: ...

    def page(self, project: str | None, *, after: tuple[str, str] | None, limit: int) -> list[VolumeRecord]:
        """By project and name."""
        ...

    def delete(self, project: str, name: str) -> None:
        """With its versions."""
        ...

    def insert_version(self, version: VolumeVersion) -> None: ...

    def version(self, project: str, name: str, version: int) -> VolumeVersion | None: ...

    def versions(self, project: str, name: str) -> list[VolumeVersion]:
        """Newest first."""
        ...

    def delete_version(self, project: str, name: str, version: int) -> None: ...

    def surplus(self, *, keep: int, before: float, limit: int) -> list[VolumeVersion]:
        """Versions made before then, behind the newest `keep` of their volume."""
        ...
