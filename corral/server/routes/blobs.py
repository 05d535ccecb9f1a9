"""Routes: bytes in and out, for users by project and for workers by lease."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import ClientDisconnect

from corral.core.leases.fence import fence
from corral.core.quotas import limits_bytes
from corral.core.storage.blobs import (
    BlobHolder,
    check_lease_reads,
    check_project_reads,
    pin_of_lease,
    pin_present,
)
from corral.core.storage.kept_objects import holder_of_uploads
from corral.core.storage.upload_space import ReservedSpace, UploadSpace
from corral.domain.errors import (
    BlobMissing,
    DigestMismatch,
    InvalidInput,
    StoreUnavailable,
    TooLarge,
)
from corral.domain.ids import Digest, LeaseId, digest, is_id
from corral.domain.leases import LeaseKey
from corral.domain.tokens import Token
from corral.ports.blobs import Upload
from corral.server.auth import Anyone, Caller, DigestPath, Epoch, OwnLease, Project, User
from corral.server.openapi import PARTIAL_ANSWER, RAW_BODY
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.blobs import BlobAnswer, BlobQuery, StoredBlob

router = APIRouter(prefix="/v1", tags=["blobs"])

CHUNK = 1 << 20
PACK_BYTES = 8 << 20
PACK_BLOBS = 5_000
_HEADER = 64 + 16
# Not `isdigit`: that takes superscripts too, which are no numbers.
_DIGITS = re.compile(r"[0-9]{1,18}")
Offset = Annotated[int | None, Query(ge=0, lt=2**62)]


async def user_holder(project: Project, caller: User, svc: Svc) -> BlobHolder:
    return BlobHolder(project, f"user:{caller.token.id}", svc.clock.now() + svc.policy.user_pin_s)


async def _lease_holder(key: OwnLease, svc: Svc, passing: bool = False) -> BlobHolder:
    """Fenced: an old epoch may not even upload. `passing` is for what will be named by a kept object."""
    lease, _ = await svc.store.write(lambda tx: fence(tx, key, now=svc.clock.now(), policy=svc.policy))
    if passing:
        return holder_of_uploads(lease, now=svc.clock.now())
    return BlobHolder(lease.project, f"lease:{lease.id}", None)


# Pins what is there, and says what is missing.
PinPresent = Callable[[Tx, Sequence[Digest]], list[Digest]]
ForUser = Annotated[BlobHolder, Depends(user_holder)]
ForLease = Annotated[BlobHolder, Depends(_lease_holder)]


@router.post("/projects/{project}/blobs/query")
async def query_user(body: BlobQuery, holder: ForUser, svc: Svc) -> BlobAnswer:
    """Which of these files the project lacks, and so must be uploaded."""
    return await _query(body, holder, svc, lambda tx, wanted: pin_present(tx, holder, wanted))


@router.post("/leases/{lease_id}/blobs/query")
async def query_lease(body: BlobQuery, key: OwnLease, holder: ForLease, svc: Svc) -> BlobAnswer:
    """Which of these files must be uploaded: all that the lease neither uploaded nor was given."""
    given = _given(key.id, svc)

    def pin(tx: Tx, wanted: Sequence[Digest]) -> list[Digest]:
        lease, _ = fence(tx, key, now=svc.clock.now(), policy=svc.policy)
        return pin_of_lease(tx, holder, lease, wanted, arguments=given)

    return await _query(body, holder, svc, pin)


def _given(lease_id: LeaseId, svc: Services) -> list[str | None]:
    """Arguments of calls that the instance has; the assignment may not be written yet."""
    return [call.args_blob for call in svc.dispatch.recent_of(lease_id)]


async def _query(body: BlobQuery, holder: BlobHolder, svc: Services, pin: PinPresent) -> BlobAnswer:
    wanted = [Digest(sha) for sha in dict.fromkeys(body.blobs)]
    missing = await svc.store.write(lambda tx: pin(tx, wanted))
    # A row whose file was lost is no reason to keep the bytes that would heal it.
    there = set(wanted) - set(missing)
    missing += await svc.in_thread(lambda: svc.blobs.lacking(list(there)))
    sizes = await svc.in_thread(
        lambda: {sha: svc.blobs.partial_size(sha, uploader=holder.name) for sha in missing}
    )
    return BlobAnswer(missing=list(missing), offsets={sha: size for sha, size in sizes.items() if size})


@router.put("/projects/{project}/blobs/{sha256}", status_code=201, openapi_extra=RAW_BODY)
async def put_user(
    sha256: DigestPath, holder: ForUser, svc: Svc, request: Request, offset: Offset = None
) -> StoredBlob:
    """Upload one file; one that broke off goes on from its offset."""
    return await _receive(sha256, holder, svc, request, offset)


@router.put("/leases/{lease_id}/blobs/{sha256}", status_code=201, openapi_extra=RAW_BODY)
async def put_lease(
    sha256: DigestPath, holder: ForLease, svc: Svc, request: Request, offset: Offset = None
) -> StoredBlob:
    """Upload one file for a lease; one that broke off goes on from its offset."""
    return await _receive(sha256, holder, svc, request, offset)


async def _receive(
    sha: Digest, holder: BlobHolder, svc: Services, request: Request, offset: int | None
) -> StoredBlob:
    """Stream to a partial file; the answer goes out when bytes and row are durable."""
    announced = _announced_size(request, svc)
    room = UploadSpace(holder, (sha,))
    # Before the body is read: what cannot be kept need not be sent.
    space = await _reserve(room, announced, svc, anew=offset is None)
    try:
        await wait_while_condemned(sha, svc)
        upload = await svc.in_thread(lambda: svc.blobs.open_upload(sha, uploader=holder.name, offset=offset))
        try:
            await _pour(request, upload, _Room(room, space, svc), svc)
            size = await svc.in_thread(upload.commit)
        except ClientDisconnect:
            raise DigestMismatch(
                "the connection broke before the end", hint="Go on from the offset."
            ) from None
        finally:
            await svc.in_thread(upload.close)
        await _become_files({sha: size}, room, space, svc)
    except BaseException:
        await _leave(sha, room, space, svc)
        raise
    return StoredBlob(sha256=sha, size=size, existed=False)


async def _reserve(room: UploadSpace, size: int, svc: Services, *, anew: bool) -> ReservedSpace | None:
    """None if the project's quota does not limit its bytes."""
    if not await svc.store.read(lambda tx: limits_bytes(tx, room.holder.project)):
        return None
    return await svc.store.write(lambda tx: room.reserve(tx, size, anew=anew, now=svc.clock.now()))


async def _leave(sha: Digest, room: UploadSpace, space: ReservedSpace | None, svc: Services) -> None:
    """What is left of a broken upload counts until it is swept."""
    if space is not None:
        left = await svc.in_thread(lambda: svc.blobs.partial_size(sha, uploader=room.holder.name))
        await svc.store.write(lambda tx: room.leave(tx, left, now=svc.clock.now()))


@dataclass
class _Room:
    """The room of an upload while it streams."""

    room: UploadSpace
    space: ReservedSpace | None
    svc: Services

    async def hold(self, size: int) -> None:
        """ProjectFull if so many bytes have no room."""
        space = self.space
        if space is not None and not space.holds(size):
            now = self.svc.clock.now()
            self.space = await self.svc.store.write(lambda tx: self.room.grow(tx, space, size, now=now))


def _announced_size(request: Request, svc: Services) -> int:
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > svc.limits.max_blob_bytes:
        raise _too_large(svc)
    return int(length)


def _too_large(svc: Services) -> TooLarge:
    return TooLarge(f"a blob may have {svc.limits.max_blob_bytes} bytes at most")


async def _pour(request: Request, upload: Upload, room: _Room, svc: Services) -> None:
    """While one piece is hashed and written in a thread, the next is received."""
    loop = asyncio.get_running_loop()
    writing: asyncio.Future[None] | None = None
    parts: list[bytes] = []
    held = total = 0
    try:
        async for part in request.stream():
            parts.append(part)
            held += len(part)
            total += len(part)
            if total > svc.limits.max_blob_bytes:
                raise _too_large(svc)
            await room.hold(total)
            if held >= CHUNK:
                if writing is not None:
                    await writing
                writing = loop.run_in_executor(svc.io, upload.write, b"".join(parts))
                parts, held = [], 0
        if writing is not None:
            await writing
        writing = None
        if held:
            await loop.run_in_executor(svc.io, upload.write, b"".join(parts))
        svc.counters.uploaded_bytes += total
    finally:
        if writing is not None and not writing.done():
            await asyncio.wait([writing])


async def wait_while_condemned(sha: Digest, svc: Services) -> None:
    for _ in range(200):
        if not await svc.store.read(lambda tx: tx.blobs.is_condemned(sha)):
            return
        await asyncio.sleep(0.05)
    raise StoreUnavailable(f"blob {sha} is being collected; try again")


async def remember_all(sizes: Mapping[Digest, int], holder: BlobHolder, svc: Services) -> None:
    await _become_files(sizes, UploadSpace(holder, tuple(sizes)), None, svc)


async def _become_files(
    sizes: Mapping[Digest, int], room: UploadSpace, space: ReservedSpace | None, svc: Services
) -> None:
    now = svc.clock.now()
    if not await svc.store.write(lambda tx: room.become_files(tx, space, sizes, now=now)):
        raise StoreUnavailable("a blob was collected while it arrived; upload it again")


@router.post("/projects/{project}/blobs/pack", status_code=201, openapi_extra=RAW_BODY)
async def pack_user(holder: ForUser, svc: Svc, request: Request) -> list[StoredBlob]:
    """Upload many small files at once."""
    return await _unpack(await request.body(), holder, svc)


@router.post("/leases/{lease_id}/blobs/pack", status_code=201, openapi_extra=RAW_BODY)
async def pack_lease(holder: ForLease, svc: Svc, request: Request) -> list[StoredBlob]:
    """Upload many small files at once for a lease."""
    return await _unpack(await request.body(), holder, svc)


async def _unpack(body: bytes, holder: BlobHolder, svc: Services) -> list[StoredBlob]:
    """Many small blobs in one body: for each its digest, its length as 16 hex digits, its bytes."""
    items = await svc.in_thread(lambda: _parse_pack(body))
    await keep_all(items, holder, svc)
    svc.counters.uploaded_bytes += len(body)
    return [StoredBlob(sha256=sha, size=len(data), existed=False) for sha, data in items]


async def keep_all(items: Sequence[tuple[Digest, bytes]], holder: BlobHolder, svc: Services) -> None:
    """What is in memory; all of it is durable afterwards."""
    sizes = {sha: len(data) for sha, data in items}
    room = UploadSpace(holder, tuple(sizes))
    space = await _reserve(room, sum(sizes.values()), svc, anew=False)
    try:
        for sha in sizes:
            await wait_while_condemned(sha, svc)
        await svc.in_thread(lambda: svc.blobs.put_many(items))
        await _become_files(sizes, room, space, svc)
    except BaseException:
        if space is not None:
            await svc.store.write(lambda tx: room.leave(tx, 0, now=svc.clock.now()))
        raise


def _parse_pack(body: bytes) -> list[tuple[Digest, bytes]]:
    if len(body) > PACK_BYTES + PACK_BLOBS * _HEADER:
        raise TooLarge(f"a pack may hold {PACK_BYTES} bytes of blobs")
    items: list[tuple[Digest, bytes]] = []
    at = 0
    while at < len(body):
        if len(items) >= PACK_BLOBS:
            raise TooLarge(f"a pack may hold {PACK_BLOBS} blobs")
        header = body[at : at + _HEADER]
        try:
            sha, size = digest(header[:64].decode("ascii")), int(header[64:].decode("ascii"), 16)
        except ValueError:
            raise InvalidInput(f"the pack is not well formed at byte {at}") from None
        at += _HEADER
        if size < 0 or at + size > len(body):
            raise InvalidInput(f"the pack ends inside the blob {sha[:12]}")
        items.append((sha, body[at : at + size]))
        at += size
    return items


async def _readable(
    sha256: DigestPath,
    token: Anyone,
    svc: Svc,
    project: str | None = None,
    lease: str | None = None,
    epoch: Epoch = 0,
) -> Digest:
    if token.host_id is not None:
        await _check_lease_reads(sha256, token, svc, lease, epoch)
    else:
        await _check_project_reads(sha256, Caller(token), svc, project)
    return sha256


Readable = Annotated[Digest, Depends(_readable)]


def bytes_are_gone(sha: Digest) -> BlobMissing:
    return BlobMissing(f"blob {sha} is named but its bytes are gone", hint="Run `corral fsck` on the server.")


@router.get("/blobs/{sha256}", response_class=StreamingResponse, responses=PARTIAL_ANSWER)
async def get_blob(sha: Readable, svc: Svc, request: Request) -> StreamingResponse:
    """A hash is not a key: only what the caller's project or live lease names."""
    try:
        size = await svc.in_thread(lambda: svc.blobs.size(sha))
        start = _range_start(request, size)
        chunks = await svc.in_thread(lambda: svc.blobs.read(sha, start=start))
    except KeyError:
        raise bytes_are_gone(sha) from None
    headers = {"Content-Length": str(size - start), "Accept-Ranges": "bytes"}
    if start:
        headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
    return StreamingResponse(
        iterate_in_threadpool(chunks), 206 if start else 200, headers, media_type="application/octet-stream"
    )


def _range_start(request: Request, size: int) -> int:
    text = request.headers.get("range", "")
    if not (text.startswith("bytes=") and text.endswith("-") and _DIGITS.fullmatch(text[6:-1])):
        return 0
    start = int(text[6:-1])
    return start if start < size else 0


async def _check_project_reads(sha: Digest, caller: Caller, svc: Services, project: str | None) -> None:
    name = caller.check_project(project or caller.token.project or "default")
    await svc.store.read(lambda tx: check_project_reads(tx, name, sha))


async def _check_lease_reads(sha: Digest, token: Token, svc: Services, lease: str | None, epoch: int) -> None:
    host_id = token.host_id
    if lease is None or not is_id(lease, "l") or host_id is None:
        raise InvalidInput("a host reads blobs for a lease: give `lease` and `epoch`")
    key = LeaseKey(LeaseId(lease), epoch, host_id)
    given = _given(key.id, svc)
    await svc.store.write(
        lambda tx: check_lease_reads(tx, key, sha, arguments=given, now=svc.clock.now(), policy=svc.policy)
    )
