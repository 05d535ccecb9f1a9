"""Committed manifests, and which runs read them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from corral.domain.artifacts import Artifact, ArtifactFile, ArtifactKind
from corral.domain.ids import ArtifactId, Digest, RunId
from corral.store.connection import Connection
from corral.store.rows import ARTIFACT, ARTIFACT_FILE


class SqlArtifacts:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, artifact: Artifact, files: Sequence[ArtifactFile]) -> None:
        self._db.put("artifact_insert", ARTIFACT, artifact)
        self._db.tell("artifact_files_insert", {"artifact_id": artifact.id, "files": json.dumps(files)})

    def get(self, artifact_id: ArtifactId) -> Artifact | None:
        row = self._db.one("artifact_get", {"id": artifact_id})
        return None if row is None else ARTIFACT.read(row)

    def by_digest(self, project: str, kind: ArtifactKind, digest: Digest) -> Artifact | None:
        """A user's upload (no run) with equal content."""
        params = {"project": project, "kind": kind.value, "digest": digest}
        row = self._db.one("artifact_by_digest", params)
        return None if row is None else ARTIFACT.read(row)

    def files(self, artifact_id: ArtifactId, *, after: str, limit: int) -> list[ArtifactFile]:
        params = {"artifact_id": artifact_id, "after": after, "limit": limit}
        return [ARTIFACT_FILE.read(row) for row in self._db.all("artifact_files", params)]

    def has(self, artifact_id: ArtifactId, path: str) -> bool:
        """Whether it has a file or a folder of this path."""
        # What lies in the folder sorts between the slash and the character after it.
        params = {"artifact_id": artifact_id, "path": path, "low": f"{path}/", "high": f"{path}0"}
        return self._db.one("artifact_has", params) is not None

    def of_run(self, run_id: RunId) -> list[Artifact]:
        return [ARTIFACT.read(row) for row in self._db.all("artifact_of_run", {"run_id": run_id})]

    def page(
        self, project: str | None, *, after: tuple[float, ArtifactId] | None, limit: int
    ) -> list[Artifact]:
        params: dict[str, object] = {"limit": limit}
        # Nothing is created after the end of time, so without `after` the page begins at the newest.
        params["after_created_at"], params["after_id"] = after or (math.inf, "")
        if project is not None:
            params["project"] = project
        return [ARTIFACT.read(row) for row in self._db.all("artifact_page", params)]

    def names_blob(self, artifact_ids: Sequence[ArtifactId], digest: Digest) -> bool:
        params = {"artifact_ids": json.dumps(list(artifact_ids)), "digest": digest}
        return self._db.one("artifact_names_blob", params) is not None

    def naming(self, project: str, digest: Digest, limit: int) -> list[tuple[ArtifactId, str, RunId | None]]:
        """Which artifacts of the project hold these bytes: the artifact, the file's path, the run."""
        params = {"project": project, "digest": digest, "limit": limit}
        return [(row[0], row[1], row[2]) for row in self._db.all("artifact_naming", params)]

    def newest_checkpoint(self, run_id: RunId) -> Artifact | None:
        row = self._db.one("artifact_newest_checkpoint", {"run_id": run_id})
        return None if row is None else ARTIFACT.read(row)

    def set_pinned(self, artifact_id: ArtifactId, pinned: bool) -> None:
        self._db.tell("artifact_set_pinned", {"id": artifact_id, "pinned": int(pinned)})

    def delete(self, artifact_id: ArtifactId) -> None:
        artifact = self.get(artifact_id)
        if artifact is None:
            return
        digests = [row[0] for row in self._db.all("artifact_digests", {"id": artifact_id})]
        for statement in ("artifact_files_delete", "artifact_uses_delete", "artifact_delete"):
            self._db.tell(statement, {"id": artifact_id})
        # Nothing else may name these bytes now: collection must look at them.
        self._db.tell("blob_loosen", {"project": artifact.project, "digests": json.dumps(digests)})

    def unused_uploads(self, before: float, limit: int) -> list[ArtifactId]:
        """Code and inputs that no run, schedule or endpoint names, made before then."""
        rows = self._db.all("artifact_unused_uploads", {"before": before, "limit": limit})
        return [ArtifactId(row[0]) for row in rows]

    def use(self, run_id: RunId, artifact_ids: Iterable[ArtifactId]) -> None:
        """Remember which artifacts a run reads."""
        for artifact_id in artifact_ids:
            self._db.tell("artifact_use", {"run_id": run_id, "artifact_id": artifact_id})

    def forget_uses(self, run_id: RunId) -> None:
        self._db.tell("run_delete_run_inputs", {"run_id": run_id})

    def is_used(self, artifact_id: ArtifactId, *, but: RunId) -> bool:
        """Whether another run, a schedule or an endpoint reads it."""
        return self._db.one("artifact_is_used", {"artifact_id": artifact_id, "but": but}) is not None

    def used_by(self, run_id: RunId) -> list[ArtifactId]:
        return [ArtifactId(row[0]) for row in self._db.all("artifact_used_by", {"run_id": run_id})]
