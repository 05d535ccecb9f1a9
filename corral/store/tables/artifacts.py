"""Artifacts, their files, and which runs read them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from corral.domain.artifacts import Artifact, ArtifactFile, ArtifactKind
from corral.domain.ids import ArtifactId, Digest, RunId
from corral.store.rows import ARTIFACT, ARTIFACT_FILE
from corral.store.table import Table, given


class SqlArtifacts(Table):
    def insert(self, artifact: Artifact, files: Sequence[ArtifactFile]) -> None:
        self._db.put("artifact_insert", ARTIFACT, artifact)
        self._tell("artifact_files_insert", artifact_id=artifact.id, files=json.dumps(files))

    def get(self, artifact_id: ArtifactId) -> Artifact | None:
        return self._one(ARTIFACT, "artifact_get", id=artifact_id)

    def by_digest(self, project: str, kind: ArtifactKind, digest: Digest) -> Artifact | None:
        """A user's upload (no run) with equal content."""
        return self._one(ARTIFACT, "artifact_by_digest", project=project, kind=kind.value, digest=digest)

    def files(self, artifact_id: ArtifactId, *, after: str, limit: int) -> list[ArtifactFile]:
        return self._all(ARTIFACT_FILE, "artifact_files", artifact_id=artifact_id, after=after, limit=limit)

    def has(self, artifact_id: ArtifactId, path: str) -> bool:
        """Whether it has a file or a folder of this path."""
        # What lies in the folder sorts between the slash and the character after it.
        return self._exists(
            "artifact_has", artifact_id=artifact_id, path=path, low=f"{path}/", high=f"{path}0"
        )

    def of_run(self, run_id: RunId) -> list[Artifact]:
        return self._all(ARTIFACT, "artifact_of_run", run_id=run_id)

    def page(
        self, project: str | None, *, after: tuple[float, ArtifactId] | None, limit: int
    ) -> list[Artifact]:
        """Newest first."""
        # Nothing is created after the end of time, so without `after` the page begins at the newest.
        at, last = after or (math.inf, "")
        scope = given(project=project)
        return self._all(ARTIFACT, "artifact_page", after_created_at=at, after_id=last, limit=limit, **scope)

    def named(self, artifact_ids: Sequence[ArtifactId], digests: Sequence[Digest]) -> set[Digest]:
        """Those of the blobs that a file of one of these artifacts has."""
        ids, wanted = json.dumps([*artifact_ids]), json.dumps([*digests])
        return set(self._column("artifact_named", artifact_ids=ids, digests=wanted))

    def with_blob(
        self, project: str, digest: Digest, limit: int
    ) -> list[tuple[ArtifactId, str, RunId | None]]:
        """Which artifacts of the project hold these bytes: the artifact, the file's path, the run."""
        params = {"project": project, "digest": digest, "limit": limit}
        return [(row[0], row[1], row[2]) for row in self._db.all("artifact_naming", params)]

    def newest_checkpoint_of_rank(self, run_id: RunId, rank: int) -> Artifact | None:
        return self._one(ARTIFACT, "artifact_newest_checkpoint_of_rank", run_id=run_id, rank=rank)

    def newest_checkpoint(self, run_id: RunId) -> Artifact | None:
        return self._one(ARTIFACT, "artifact_newest_checkpoint", run_id=run_id)

    def set_pinned(self, artifact_id: ArtifactId, pinned: bool) -> None:
        self._tell("artifact_set_pinned", id=artifact_id, pinned=int(pinned))

    def delete(self, artifact_id: ArtifactId) -> None:
        artifact = self.get(artifact_id)
        if artifact is None:
            return
        digests = self._column("artifact_digests", id=artifact_id)
        for statement in ("artifact_files_delete", "artifact_uses_delete", "artifact_delete"):
            self._tell(statement, id=artifact_id)
        # Perhaps no other artifact names these bytes now: collection must look at them.
        self._tell("blob_loosen", project=artifact.project, digests=json.dumps(digests))

    def unused_uploads(self, before: float, limit: int) -> list[ArtifactId]:
        """Code and inputs that no run, schedule or endpoint names, made before then."""
        return self._column("artifact_unused_uploads", before=before, limit=limit)

    def use(self, run_id: RunId, artifact_ids: Iterable[ArtifactId]) -> None:
        """Remember which artifacts a run reads."""
        for artifact_id in artifact_ids:
            self._tell("artifact_use", run_id=run_id, artifact_id=artifact_id)

    def forget_uses(self, run_id: RunId) -> None:
        self._tell("run_delete_run_inputs", run_id=run_id)

    def is_used(self, artifact_id: ArtifactId, *, but: RunId) -> bool:
        """Whether another run, a schedule or an endpoint reads it."""
        return self._exists("artifact_is_used", artifact_id=artifact_id, but=but)

    def used_by(self, run_id: RunId) -> list[ArtifactId]:
        return self._column("artifact_used_by", run_id=run_id)
