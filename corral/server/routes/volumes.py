"""Routes: volumes, for users by project and for instances by lease."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from corral.core import volumes as core
from corral.core.artifacts import FileManifest
from corral.core.audit import note
from corral.core.leases.fence import fence
from corral.core.storage.blobs import NamedBlob, check_of_lease
from corral.core.volumes import VolumeChange, VolumeCommitResult, VolumeDraft
from corral.domain.artifacts import Artifact, ArtifactKind
from corral.domain.errors import NotFound, VolumeConflict
from corral.domain.ids import is_name
from corral.domain.leases import Lease, LeaseKey
from corral.domain.runs.runs import Run
from corral.domain.volumes import VolumeRecord, VolumeVersion
from corral.server.auth import OwnLease, Project, User
from corral.server.bodies.large import LargeBodyRoute
from corral.server.pages import Limit, NameCursor, next_page, parse_name_cursor
from corral.server.routes.artifacts import refuse_secrets
from corral.server.routes.leases import files_of
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.volumes import VolumeCommit, VolumeDetail, VolumePage, VolumeVersionView, VolumeView

router = APIRouter(prefix="/v1", tags=["volumes"], route_class=LargeBodyRoute)
# None if the draft is of another version.
Unit = Callable[[Tx, VolumeDraft], VolumeVersionView | None]
# A change that others were faster than is merged anew so often.
_MOST_DRAFTS = 10


async def volume_path(volume: str) -> str:
    if not is_name(volume):
        raise NotFound(f"there is no volume {volume[:80]!r}")
    return volume


VolumePath = Annotated[str, Depends(volume_path)]


@router.get("/volumes")
async def list_volumes(
    caller: User, svc: Svc, project: str | None = None, cursor: NameCursor = None, limit: Limit = 100
) -> VolumePage:
    """Volumes by project and name."""
    after = parse_name_cursor(cursor)

    def unit(tx: Tx) -> VolumePage:
        found = tx.volumes.page(caller.narrowed(project), after=after, limit=limit)
        more = next_page(found, limit, lambda last: f"{last.project}/{last.name}")
        return VolumePage(items=[_volume(tx, one) for one in found], next=more)

    return await svc.store.read(unit)


@router.get("/projects/{project}/volumes/{volume}")
async def get_volume(project: Project, volume: VolumePath, svc: Svc) -> VolumeDetail:
    """One volume, with the versions that are kept."""

    def unit(tx: Tx) -> VolumeDetail:
        found = core.get(tx, project, volume)
        kept = tx.volumes.versions(project, volume)
        versions = [_version(one, tx.artifacts.get(one.artifact_id)) for one in kept]
        return VolumeDetail(**_volume(tx, found).model_dump(), versions=versions)

    return await svc.store.read(unit)


@router.post("/projects/{project}/volumes/{volume}/versions", status_code=201)
async def commit_volume(
    project: Project, volume: VolumePath, body: VolumeCommit, caller: User, svc: Svc
) -> VolumeVersionView:
    """Commit a change of the volume's files, which must be there; makes the volume if there is none.

    What others committed since is merged; files that both changed are a conflict that names them.
    """
    change = await svc.in_thread(lambda: _change(body))
    await _refuse_secrets(project, volume, change, svc)

    def unit(tx: Tx, made: VolumeDraft) -> VolumeVersionView | None:
        by, now = caller.actor, svc.clock.now()
        done = core.commit(tx, project, volume, made, base=change.base, by=by, now=now)
        return None if done is None else _answer(project, volume, done)

    return await _written(project, volume, change, svc, unit)


def _with_draft(unit: Unit, made: VolumeDraft, tx: Tx) -> VolumeVersionView | None:
    return unit(tx, made)


async def _written(
    project: str,
    volume: str,
    change: VolumeChange,
    svc: Services,
    unit: Unit,
) -> VolumeVersionView:
    """By a draft of the newest version, and by another where somebody else was first."""
    for _ in range(_MOST_DRAFTS):
        made = await svc.store.read(lambda tx: core.draft(tx, project, volume, change))
        if (done := await svc.store.write(partial(_with_draft, unit, made))) is not None:
            return done
    raise VolumeConflict(f"others commit to volume {volume} faster than this change can be merged")


@router.delete("/projects/{project}/volumes/{volume}", status_code=204)
async def remove_volume(project: Project, volume: VolumePath, caller: User, svc: Svc) -> None:
    """Remove a volume with all its versions."""

    def unit(tx: Tx) -> None:
        core.remove(tx, project, volume)
        note(tx, "volume.remove", f"{project}/{volume}", caller.by(svc.clock))

    await svc.store.write(unit)


@router.get("/leases/{lease_id}/volumes/{volume}")
async def get_mounted(key: OwnLease, volume: VolumePath, svc: Svc) -> VolumeVersionView:
    """The newest version of a volume that the lease's run mounts; the lease may read its files then."""

    def unit(tx: Tx) -> VolumeVersionView:
        _, run = _mounting(tx, key, volume, svc)
        found = tx.volumes.get(run.project, volume)
        done = VolumeCommitResult(None, None) if found is None else core.newest(tx, found)
        return _readable(tx, run, volume, done)

    return await svc.store.write(unit)


@router.post("/leases/{lease_id}/volumes/{volume}/versions", status_code=201)
async def commit_mounted(
    key: OwnLease, volume: VolumePath, body: VolumeCommit, svc: Svc
) -> VolumeVersionView:
    """Commit a change of a volume that the lease's run mounts."""
    change = await svc.in_thread(lambda: _change(body))
    project = await svc.store.write(lambda tx: _mounting(tx, key, volume, svc)[1].project)
    await _refuse_secrets(project, volume, change, svc)

    def unit(tx: Tx, made: VolumeDraft) -> VolumeVersionView | None:
        lease, run = _mounting(tx, key, volume, svc)
        new = core.unseen(tx, run.project, volume, change.files)
        check_of_lease(tx, lease, [NamedBlob(file.digest, file.size) for file in new])
        by, now = f"run:{run.id}", svc.clock.now()
        done = core.commit(tx, run.project, volume, made, base=change.base, by=by, now=now)
        return None if done is None else _readable(tx, run, volume, done)

    return await _written(project, volume, change, svc, unit)


async def _refuse_secrets(project: str, volume: str, change: VolumeChange, svc: Services) -> None:
    new = await svc.store.read(lambda tx: core.unseen(tx, project, volume, change.files))
    await refuse_secrets(project, FileManifest(ArtifactKind.VOLUME, tuple(new)), svc)


def _mounting(tx: Tx, key: LeaseKey, volume: str, svc: Services) -> tuple[Lease, Run]:
    """The lease and its run, if it mounts the volume: a host gets at no other through it."""
    lease, run = fence(tx, key, now=svc.clock.now(), policy=svc.policy)
    service = json.loads(tx.runs.spec(run.id)).get("service") or {}
    if volume not in (service.get("volumes") or {}).values():
        raise NotFound(
            f"run {run.id} does not mount a volume {volume!r}",
            hint="Name it in the decorator: volumes={'data': corral.Volume(...)}.",
        )
    return lease, run


def _readable(tx: Tx, run: Run, volume: str, done: VolumeCommitResult) -> VolumeVersionView:
    if done.artifact is not None:
        tx.artifacts.use(run.id, [done.artifact.id])
    return _answer(run.project, volume, done)


def _change(body: VolumeCommit) -> VolumeChange:
    return VolumeChange(body.base, files_of(body.files))


def _answer(project: str, volume: str, done: VolumeCommitResult) -> VolumeVersionView:
    if done.version is None:
        return VolumeVersionView(volume=volume, project=project, version=0)
    return _version(done.version, done.artifact)


def _version(version: VolumeVersion, artifact: Artifact | None) -> VolumeVersionView:
    return VolumeVersionView(**version._asdict(), volume=version.name, **_sizes(artifact))


def _volume(tx: Tx, volume: VolumeRecord) -> VolumeView:
    version, artifact = core.newest(tx, volume)
    changed_at = volume.created_at if version is None else version.created_at
    return VolumeView(**volume._asdict(), **_sizes(artifact), changed_at=changed_at)


def _sizes(artifact: Artifact | None) -> dict[str, Any]:
    if artifact is None:
        return {}
    return {"digest": artifact.digest, "files": artifact.files, "bytes": artifact.bytes}
