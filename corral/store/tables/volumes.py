"""Volumes and their versions."""

from __future__ import annotations

from corral.domain.volumes import VolumeRecord, VolumeVersion
from corral.store.rows import VOLUME, VOLUME_VERSION
from corral.store.table import Table, given


class SqlVolumes(Table):
    def insert(self, volume: VolumeRecord) -> bool:
        """False, and nothing is written, if the project has one of this name."""
        return self._db.run("volume_insert", VOLUME.params(volume)) > 0

    def get(self, project: str, name: str) -> VolumeRecord | None:
        return self._one(VOLUME, "volume_get", project=project, name=name)

    def lock(self, project: str, name: str) -> VolumeRecord | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        return self._one(VOLUME, "volume_lock", project=project, name=name)

    def set_head(self, project: str, name: str, head: int) -> None:
        self._tell("volume_set_head", project=project, name=name, head=head)

    def page(self, project: str | None, *, after: tuple[str, str] | None, limit: int) -> list[VolumeRecord]:
        """By project and name."""
        last_project, last = after or ("", "")
        scope = given(project=project)
        return self._all(VOLUME, "volume_page", last_project=last_project, last=last, limit=limit, **scope)

    def delete(self, project: str, name: str) -> None:
        """Delete the volume with its versions."""
        for statement in ("volume_versions_delete", "volume_delete"):
            self._tell(statement, project=project, name=name)

    def insert_version(self, version: VolumeVersion) -> None:
        self._db.put("volume_version_insert", VOLUME_VERSION, version)

    def version(self, project: str, name: str, version: int) -> VolumeVersion | None:
        return self._one(VOLUME_VERSION, "volume_version_get", project=project, name=name, version=version)

    def versions(self, project: str, name: str) -> list[VolumeVersion]:
        """Newest first."""
        return self._all(VOLUME_VERSION, "volume_version_all", project=project, name=name)

    def delete_version(self, project: str, name: str, version: int) -> None:
        self._tell("volume_version_delete", project=project, name=name, version=version)

    def surplus(self, *, keep: int, before: float, limit: int) -> list[VolumeVersion]:
        """Versions made before then, behind the newest `keep` of their volume."""
        return self._all(VOLUME_VERSION, "volume_surplus", keep=keep, before=before, limit=limit)
