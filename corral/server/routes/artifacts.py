"""Routes: manifests and their files."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from corral.core import artifacts as core
from corral.core import secrets
from corral.core.audit import note
from corral.core.storage.blobs import readable_by_lease
from corral.domain.artifacts import Artifact, ArtifactFile, ArtifactKind
from corral.domain.errors import Conflict, NotFound
from corral.domain.ids import ArtifactId
from corral.domain.secrets.redact import SecretValues
from corral.domain.tokens import Token
from corral.server.auth import Anyone, ArtifactPath, Caller, Project, User
from corral.server.bodies.large import LargeBodyRoute
from corral.server.bulk_reads import CallerGone, FileCheck
from corral.server.pages import (
    Limit,
    LongLimit,
    by_time,
    filled,
    in_portions,
    json_answer,
    parse_time_cursor,
)
from corral.server.routes.leases import manifest
from corral.server.services import Services, Svc
from corral.server.views import NameLookup, artifact_view
from corral.store.transaction import Tx
from corral.wire import artifacts as wire

router = APIRouter(prefix="/v1", tags=["artifacts"], route_class=LargeBodyRoute)
# How many of a list are read at a time: what is told of an artifact may have 1 MiB.
_METAS = 16
FilePath = Annotated[str, Query(max_length=4096)]


@router.post("/projects/{project}/artifacts", status_code=201)
async def commit_upload(
    project: Project, body: wire.ManifestRequest, caller: User, svc: Svc
) -> wire.ArtifactView:
    """Code or an input. Equal content gets the artifact that is there."""
    what = await svc.in_thread(lambda: manifest(body, ArtifactKind.CODE, ArtifactKind.INPUT))
    await refuse_secrets(project, what, svc)
    commit = partial(core.commit_upload, manifest=what, principal=caller.actor, now=svc.clock.now())
    return await svc.store.write(lambda tx: artifact_view(commit(tx, project), NameLookup(tx)))


async def refuse_secrets(project: str, what: core.FileManifest, svc: Services) -> None:
    """Names and bytes of an upload are stored and shown in clear: they may hold no secret of the project."""
    text = "\n".join([*(file.path for file in what.files), what.meta])

    def unit(tx: Tx) -> tuple[SecretValues, list[ArtifactFile]] | None:
        secrets.refuse_exposed(tx, svc.redactor, project, text, what="the manifest")
        known = tx.artifacts.by_digest(project, what.kind, what.digest)
        values = svc.redactor.of(tx, project)
        if known is not None or values is None:
            return None
        # Only what the project has: that a stranger's file holds a secret is not ours to tell.
        have = tx.blobs.present(project, [file.digest for file in what.files])
        distinct = {file.digest: file for file in what.files if file.digest in have}
        return values, list(distinct.values())

    search = await svc.store.read(unit)
    if search is not None:
        async with svc.bulk_reads.turn(f"search {project}"):
            for file in search[1]:
                await svc.bulk_reads.in_thread(partial(_search, svc, search[0], file))


def _search(svc: Services, values: SecretValues, file: ArtifactFile) -> None:
    # Missing bytes are the commit's to report.
    with suppress(KeyError):
        secrets.refuse_file(values, file.path, svc.blobs.read(file.digest))


@router.get("/artifacts", response_model=wire.ArtifactPage)
async def list_artifacts(
    caller: User, svc: Svc, project: str | None = None, cursor: str | None = None, limit: Limit = 50
) -> Response:
    """Artifacts, the newest first."""
    after = parse_time_cursor(cursor, "a", ArtifactId)

    def unit(tx: Tx) -> bytes:
        names = NameLookup(tx)

        def read(last: tuple[float, ArtifactId] | None, count: int) -> list[Artifact]:
            return tx.artifacts.page(caller.narrowed(project), after=last, limit=count)

        rows = in_portions(
            read, lambda one: (one.created_at, one.id), after=after, limit=limit, portion=_METAS
        )
        return filled(rows, limit, lambda one: artifact_view(one, names)).with_next(by_time)

    return json_answer(await svc.store.read(unit))


def _seen(tx: Tx, artifact_id: ArtifactId, token: Token) -> Artifact:
    """An artifact that the caller may read; one of another project is not there for them."""
    artifact = core.get(tx, artifact_id)
    if token.host_id is None:
        if Caller(token).sees(artifact.project):
            return artifact
    else:
        for lease in tx.leases.live_of_host(token.host_id):
            if artifact_id in readable_by_lease(tx, lease):
                return artifact
    raise NotFound(f"there is no artifact {artifact_id}")


@router.get("/artifacts/{artifact_id}")
async def get_artifact(artifact_id: ArtifactPath, token: Anyone, svc: Svc) -> wire.ArtifactView:
    """One artifact: what made it, its size, whether it is pinned."""
    return await svc.store.read(lambda tx: artifact_view(_seen(tx, artifact_id, token), NameLookup(tx)))


@router.get("/artifacts/{artifact_id}/files", response_model=wire.FilePage)
async def get_files(
    artifact_id: ArtifactPath, token: Anyone, svc: Svc, after: FilePath = "", limit: LongLimit = 1000
) -> Response:
    """A page of the artifact's files, each with its digest and size."""

    def unit(tx: Tx) -> bytes:
        _seen(tx, artifact_id, token)
        files = tx.artifacts.files(artifact_id, after=after, limit=limit)
        return filled(files, limit, _file_record).with_next(lambda last: last.path)

    return json_answer(await svc.store.read(unit))


def _file_record(file: ArtifactFile) -> wire.FileRecord:
    return wire.FileRecord.model_construct(path=file.path, sha256=file.digest, size=file.size, mode=file.mode)


@router.post("/artifacts/{artifact_id}/verify")
async def verify(artifact_id: ArtifactPath, caller: User, svc: Svc, request: Request) -> wire.VerifyAnswer:
    """Read every byte of every file again and compare with its digest; for a project one at a time."""
    # Until its body is read, a caller that hung up looks as if it were there.
    await request.body()
    artifact = await svc.store.read(lambda tx: _seen(tx, artifact_id, caller.token))
    with suppress(CallerGone):
        async with svc.bulk_reads.turn(f"verify {artifact.project}"):
            return await _verified(
                artifact, FileCheck(svc.blobs, svc.bulk_reads, request.is_disconnected), svc
            )
    raise Conflict("the caller hung up before everything was compared")


async def _verified(artifact: Artifact, check: FileCheck, svc: Services) -> wire.VerifyAnswer:
    problems: list[str] = []
    files = size = 0
    after = ""
    while page := await svc.store.read(partial(_some_files, artifact.id, after)):
        for file in page:
            files += 1
            size += file.size
            if (problem := await check.problem(file)) is not None:
                problems.append(problem)
        after = page[-1].path
    if (files, size) != (artifact.files, artifact.bytes):
        problems.append(f"the manifest has {files} files of {size} bytes, not as recorded")
    return wire.VerifyAnswer(artifact_id=artifact.id, files=files, bytes=size, problems=problems)


def _some_files(artifact_id: ArtifactId, after: str, tx: Tx) -> list[ArtifactFile]:
    return tx.artifacts.files(artifact_id, after=after, limit=1000)


@router.post("/artifacts/{artifact_id}/pin")
async def pin(artifact_id: ArtifactPath, caller: User, svc: Svc) -> wire.ArtifactView:
    """Keep the artifact whatever the retention rules say."""
    return await _set_pinned(artifact_id, caller, svc, pinned=True)


@router.post("/artifacts/{artifact_id}/unpin")
async def unpin(artifact_id: ArtifactPath, caller: User, svc: Svc) -> wire.ArtifactView:
    """Leave the artifact to the retention rules again."""
    return await _set_pinned(artifact_id, caller, svc, pinned=False)


async def _set_pinned(
    artifact_id: ArtifactId, caller: Caller, svc: Services, *, pinned: bool
) -> wire.ArtifactView:
    def unit(tx: Tx) -> wire.ArtifactView:
        found = _seen(tx, artifact_id, caller.token)
        tx.artifacts.set_pinned(artifact_id, pinned)
        _note(tx, "artifact.pin" if pinned else "artifact.unpin", found, caller, svc)
        return artifact_view(found._replace(pinned=pinned), NameLookup(tx))

    return await svc.store.write(unit)


@router.delete("/artifacts/{artifact_id}", status_code=204)
async def delete(artifact_id: ArtifactPath, caller: User, svc: Svc) -> None:
    """Remove the artifact; files that nothing else names are deleted later."""

    def unit(tx: Tx) -> None:
        found = _seen(tx, artifact_id, caller.token)
        core.delete(tx, artifact_id)
        _note(tx, "artifact.remove", found, caller, svc)

    await svc.store.write(unit)


def _note(tx: Tx, action: str, artifact: Artifact, caller: Caller, svc: Services) -> None:
    data = {"project": artifact.project, "kind": artifact.kind, "run": artifact.run_id}
    note(tx, action, f"artifact:{artifact.id}", caller.by(svc.clock), **data)
