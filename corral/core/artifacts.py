"""Committing manifests, reading them, and keeping only the checkpoints worth keeping."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.runs.transitions import record
from corral.core.storage.blobs import NamedBlob, check_of_lease
from corral.domain.artifacts import Artifact, ArtifactFile, ArtifactKind, listing_digest
from corral.domain.errors import BlobMissing, Conflict, InvalidInput, found
from corral.domain.ids import ArtifactId, Digest, new_artifact_id
from corral.domain.leases import Lease, LeaseKey
from corral.domain.paths import check_paths
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL
from corral.store.transaction import Tx


@dataclass(frozen=True)
class FileManifest:
    kind: ArtifactKind
    files: tuple[ArtifactFile, ...]
    step: int | None = None
    metric: float | None = None
    meta: str = "{}"

    @cached_property
    def digest(self) -> Digest:
        """Of its files, which takes long where there are many; BadPath if one of them cannot be stored."""
        check_paths([f.path for f in self.files])
        return listing_digest(self.files)


def commit_from_lease(
    tx: Tx, key: LeaseKey, manifest: FileManifest, *, now: float, policy: ServerPolicy
) -> Artifact:
    """Bind files to the run, attempt, rank and epoch that made them. The same again is the same artifact."""
    digest = manifest.digest
    lease, run = fence(tx, key, now=now, policy=policy)
    for known in tx.artifacts.of_run(run.id):
        made_by = (known.epoch, known.kind, known.digest, known.step)
        if made_by == (lease.epoch, manifest.kind, digest, manifest.step):
            return known
    check_blobs(tx, run.project, manifest.files)
    check_of_lease(tx, lease, [NamedBlob(file.digest, file.size) for file in manifest.files])
    artifact = insert(tx, manifest, project=run.project, lease=lease, by=f"host:{key.host_id}", now=now)
    data = {"artifact": artifact.id, "kind": artifact.kind, "step": artifact.step, "metric": artifact.metric}
    run = record(tx, run, "artifact", at=now, actor=f"host:{key.host_id}", data=data)
    if manifest.kind is ArtifactKind.CHECKPOINT:
        _drop_old_checkpoints(tx, run)
    return artifact


def commit_upload(tx: Tx, project: str, manifest: FileManifest, *, principal: str, now: float) -> Artifact:
    """A user's code or input. Equal content is stored once per project."""
    if manifest.kind not in (ArtifactKind.CODE, ArtifactKind.INPUT):
        raise InvalidInput(f"a {manifest.kind} can only be committed by the worker that made it")
    digest = manifest.digest
    known = tx.artifacts.by_digest(project, manifest.kind, digest)
    if known is not None:
        return known
    check_blobs(tx, project, manifest.files)
    return insert(tx, manifest, project=project, lease=None, by=principal, now=now)


def check_blobs(tx: Tx, project: str, files: Sequence[ArtifactFile]) -> None:
    """In the commit's own transaction: each blob is there, has this size and is not on its way out."""
    wanted = {f.digest: f.size for f in files}
    have = tx.blobs.present(project, list(wanted))
    missing = [digest for digest in wanted if digest not in have]
    if missing:
        raise BlobMissing(
            f"{len(missing)} of {len(wanted)} blobs are not in project {project}: "
            + ", ".join(digest[:12] for digest in missing[:10])
        )
    wrong = [f.path for f in files if have[f.digest] != f.size]
    if wrong:
        raise InvalidInput(f"the size given for {wrong[0]!r} is not that of its blob")


def insert(
    tx: Tx, manifest: FileManifest, *, project: str, lease: Lease | None, by: str, now: float
) -> Artifact:
    artifact = Artifact(
        id=new_artifact_id(),
        project=project,
        kind=manifest.kind,
        digest=manifest.digest,
        files=len(manifest.files),
        bytes=sum(f.size for f in manifest.files),
        **{name: getattr(lease, name, None) for name in ("run_id", "attempt", "rank", "epoch", "host_id")},
        step=manifest.step,
        metric=manifest.metric,
        meta=manifest.meta,
        pinned=False,
        created_at=now,
        created_by=by,
    )
    tx.artifacts.insert(artifact, manifest.files)
    return artifact


def _drop_old_checkpoints(tx: Tx, run: Run) -> None:
    keep = json.loads(tx.runs.spec(run.id)).get("keep", {})
    made = [a for a in tx.artifacts.of_run(run.id) if a.kind is ArtifactKind.CHECKPOINT]
    for artifact in surplus(
        made, latest=keep.get("latest", 2), best=keep.get("best", 1), lowest=keep.get("metric") != "max"
    ):
        tx.artifacts.delete(artifact.id)


def surplus(made: Sequence[Artifact], *, latest: int, best: int, lowest: bool) -> list[Artifact]:
    """Checkpoints that are neither pinned nor among the newest nor among the best, by rank."""
    kept: set[ArtifactId] = {a.id for a in made if a.pinned}
    for rank in {a.rank for a in made}:
        mine = [a for a in made if a.rank == rank]
        newest = sorted(mine, key=lambda a: (a.epoch or 0, a.step or 0, a.created_at), reverse=True)
        kept |= {a.id for a in newest[:latest]}
        scored = [(a.metric, a) for a in mine if a.metric is not None]
        scored.sort(key=lambda pair: pair[0] if lowest else -pair[0])
        kept |= {a.id for _, a in scored[:best]}
    return [a for a in made if a.id not in kept]


def get(tx: Tx, artifact_id: ArtifactId) -> Artifact:
    hint = "List them with `corral artifacts ls`."
    return found(tx.artifacts.get(artifact_id), f"there is no artifact {artifact_id}", hint=hint)


def delete(tx: Tx, artifact_id: ArtifactId) -> None:
    """Its blobs go with the next collection, unless something else names them."""
    artifact = get(tx, artifact_id)
    if artifact.pinned:
        raise Conflict(f"artifact {artifact_id} is pinned", hint=f"`corral artifacts unpin {artifact_id}`")
    if artifact.kind is ArtifactKind.VOLUME:
        raise Conflict(
            f"artifact {artifact_id} is a version of a volume", hint="It goes with it: `corral volumes rm`."
        )
    if artifact.run_id is not None:
        run = tx.runs.lock(artifact.run_id)
        if run is not None and run.artifact_id == artifact_id:
            raise Conflict(
                f"artifact {artifact_id} is the result of run {run.id}",
                hint="A run's result stays as long as the run.",
            )
        if run is not None and run.state not in FINAL:
            raise Conflict(f"run {run.id} is {run.state} and may resume from {artifact_id}")
    tx.artifacts.delete(artifact_id)
