"""Volumes and their versions."""

from __future__ import annotations

from corral.domain.volumes import VolumeRecord, VolumeVersion
from corral.store.connection import Connection
from corral.store.rows import VOLUME, VOLUME_VERSION


class SqlVolumes:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, volume: VolumeRecord) -> bool:
        """False, and nothing is written, if the project has one of this name."""
        return self._db.run("volume_insert", VOLUME.params(volume)) > 0

    def get(self, project: str, name: str) -> VolumeRecord | None:
        row = self._db.one("volume_get", {"project": project, "name": name})
        return None if row is None else VOLUME.read(row)

    def lock(self, project: str, name: str) -> VolumeRecord | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        row = self._db.one("volume_lock", {"project": project, "name": name})
        return None if row is None else VOLUME.read(row)

    def set_head(self, project: str, name: str, head: int) -> None:
        self._db.tell("volume_set_head", {"project": project, "name": name, "head": head})

    def page(self, project: str | None, *, after: tuple[str, str] | None, limit: int) -> list[VolumeRecord]:
        """By project and name."""
        last_project, last = after or ("", "")
        params: dict[str, object] = {"last_project": last_project, "last": last, "limit": limit}
        if project is not None:
            params["project"] = project
        return [VOLUME.read(row) for row in self._db.all("volume_page", params)]

    def delete(self, project: str, name: str) -> None:
        """With its versions."""
        for statement in ("volume_versions_delete", "volume_delete"):
            self._db.tell(statement, {"project": project, "name": name})

    def insert_version(self, version: VolumeVersion) -> None:
        self._db.put("volume_version_insert", VOLUME_VERSION, version)

    def version(self, project: str, name: str, version: int) -> VolumeVersion | None:
        row = self._db.one("volume_version_get", {"project": project, "name": name, "version": version})
        return None if row is None else VOLUME_VERSION.read(row)

    def versions(self, project: str, name: str) -> list[VolumeVersion]:
        """Newest first."""
        rows = self._db.all("volume_version_all", {"project": project, "name": name})
        return [VOLUME_VERSION.read(row) for row in rows]

    def delete_version(self, project: str, name: str, version: int) -> None:
        self._db.tell("volume_version_delete", {"project": project, "name": name, "version": version})

    def surplus(self, *, keep: int, before: float, limit: int) -> list[VolumeVersion]:
        """Versions made before then, behind the newest `keep` of their volume."""
        rows = self._db.all("volume_surplus", {"keep": keep, "before": before, "limit": limit})
        return [VOLUME_VERSION.read(row) for row in rows]
