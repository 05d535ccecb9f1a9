"""Manifests."""

from __future__ import annotations

from corral.domain.manifests import Manifest
from corral.store.rows import MANIFEST
from corral.store.table import Table


class SqlManifests(Table):
    def get(self, project: str, name: str) -> Manifest | None:
        return self._one(MANIFEST, "manifest_get", project=project, name=name)

    def lock(self, project: str, name: str) -> Manifest | None:
        """Like `get`, and no other transaction applies this manifest until this one ends."""
        return self._one(MANIFEST, "manifest_lock", project=project, name=name)

    def claim(self, manifest: Manifest) -> None:
        """Insert it unless there is one of its name; waits for another transaction that is about to."""
        self._db.put("manifest_claim", MANIFEST, manifest)

    def put(self, manifest: Manifest) -> None:
        """Insert or replace."""
        self._db.put("manifest_put", MANIFEST, manifest)

    def page(self, after: tuple[str, str] | None, limit: int) -> list[Manifest]:
        project, name = after or ("", "")
        return self._all(MANIFEST, "manifest_page", project=project, name=name, limit=limit)

    def delete(self, project: str, name: str) -> bool:
        return self._changed("manifest_delete", project=project, name=name)
