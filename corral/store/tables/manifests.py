"""Manifests."""

from __future__ import annotations

from corral.domain.manifests import Manifest
from corral.store.connection import Connection
from corral.store.rows import MANIFEST


class SqlManifests:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def get(self, project: str, name: str) -> Manifest | None:
        row = self._db.one("manifest_get", {"project": project, "name": name})
        return None if row is None else MANIFEST.read(row)

    def lock(self, project: str, name: str) -> Manifest | None:
        """Like `get`, and no other transaction applies this manifest until this one ends."""
        row = self._db.one("manifest_lock", {"project": project, "name": name})
        return None if row is None else MANIFEST.read(row)

    def claim(self, manifest: Manifest) -> None:
        """Insert it unless there is one of its name; waits for whoever is about to do the same."""
        self._db.put("manifest_claim", MANIFEST, manifest)

    def put(self, manifest: Manifest) -> None:
        """Insert or replace."""
        self._db.put("manifest_put", MANIFEST, manifest)

    def page(self, after: tuple[str, str] | None, limit: int) -> list[Manifest]:
        project, name = after or ("", "")
        rows = self._db.all("manifest_page", {"project": project, "name": name, "limit": limit})
        return [MANIFEST.read(row) for row in rows]

    def delete(self, project: str, name: str) -> bool:
        return self._db.run("manifest_delete", {"project": project, "name": name}) > 0
