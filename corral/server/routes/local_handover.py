"""Routes: bytes of clients on the server's own machine, which are moved and read in place, not sent."""

from __future__ import annotations

import asyncio
import ipaddress

from fastapi import APIRouter, Request

from corral.core.quotas import check_bytes, check_file_size
from corral.core.storage.blobs import BlobHolder
from corral.domain.errors import Conflict, NotFound, TooLarge
from corral.ports.blobs import HandedOverFile
from corral.server.auth import Anyone, origin_of
from corral.server.routes.blobs import (
    ForLease,
    ForUser,
    Readable,
    bytes_are_gone,
    remember_all,
    wait_while_condemned,
)
from corral.server.services import Services, Svc
from corral.wire.blobs import BlobPlace, HandoverFolder, HandoverRequest, StoredBlob

# A writer that does nothing for so long is not waited for.
STALLED_S = 60.0
# Between two looks at a file that grows.
_LEAST_PAUSE_S = 0.0005
_MOST_PAUSE_S = 0.05

router = APIRouter(prefix="/v1", tags=["blobs"])


@router.get("/near")
async def near(token: Anyone, svc: Svc, request: Request) -> HandoverFolder:
    """The folder for files that need not be sent, if the caller may be on this machine.

    Whether it is, it finds out itself: then the folder is there, and it may write to it.
    """
    if not _from_here(request):
        return HandoverFolder(folder=None)
    folder = await svc.in_thread(svc.blobs.near)
    return HandoverFolder(folder=None if folder is None else str(folder))


def _from_here(request: Request) -> bool:
    try:
        return ipaddress.ip_address(origin_of(request)).is_loopback
    except ValueError:
        return False


@router.post("/projects/{project}/blobs/near", status_code=201)
async def near_user(body: HandoverRequest, holder: ForUser, svc: Svc) -> StoredBlob:
    """Take a file that was put into the folder, and may still be written."""
    return await _taken(body, holder, svc)


@router.post("/leases/{lease_id}/blobs/near", status_code=201)
async def near_lease(body: HandoverRequest, holder: ForLease, svc: Svc) -> StoredBlob:
    """Take a file that was put into the folder, and may still be written, for a lease."""
    return await _taken(body, holder, svc)


async def _taken(body: HandoverRequest, holder: BlobHolder, svc: Services) -> StoredBlob:
    if body.size is not None:
        # Before it is read: what cannot be kept need not be written.
        _check_size(body.size, svc)
        announced = body.size
        await svc.store.read(lambda tx: check_file_size(tx, holder.project, announced))
    try:
        taken = await svc.in_thread(lambda: svc.blobs.take(body.name))
    except KeyError:
        raise NotFound(f"there is no file {body.name} near this server", hint="Upload it.") from None
    try:
        await _read_whole(taken, body.size, svc)
        sha, size = taken.digest, taken.size
        await svc.store.read(lambda tx: check_bytes(tx, holder.project, {sha: size}))
        await wait_while_condemned(sha, svc)
        await svc.in_thread(taken.commit)
    finally:
        await svc.in_thread(taken.close)
    svc.counters.uploaded_bytes += size
    await remember_all({sha: size}, holder, svc)
    return StoredBlob(sha256=sha, size=size, existed=False)


def _check_size(size: int, svc: Services) -> None:
    if size > svc.limits.max_blob_bytes:
        raise TooLarge(f"a blob may have {svc.limits.max_blob_bytes} bytes at most")


async def _read_whole(taken: HandedOverFile, announced: int | None, svc: Services) -> None:
    """As it grows. A slow writer is waited for here, where it holds no thread."""
    seen, moved_at, pause_s = 0, svc.clock.monotonic(), _LEAST_PAUSE_S
    while not await svc.in_thread(taken.read_on):
        _check_size(taken.size, svc)
        if announced is not None and taken.size > announced:
            break
        now = svc.clock.monotonic()
        if taken.size > seen:
            seen, moved_at, pause_s = taken.size, now, _LEAST_PAUSE_S
        elif now - moved_at > STALLED_S:
            raise Conflict(
                f"nothing was written to the file for {STALLED_S:g} s after its first {seen} bytes",
                hint="Upload it.",
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MOST_PAUSE_S)
    _check_size(taken.size, svc)
    if announced is not None and taken.size != announced:
        raise Conflict(
            f"{announced} bytes of the file were announced, and {taken.size} were written", hint="Upload it."
        )


@router.get("/blobs/{sha256}/place")
async def place(sha: Readable, svc: Svc, request: Request) -> BlobPlace:
    """Where a blob that the caller may read lies, if it may be on this machine."""
    if not _from_here(request):
        return BlobPlace(path=None)
    try:
        path = await svc.in_thread(lambda: svc.blobs.place(sha))
    except KeyError:
        raise bytes_are_gone(sha) from None
    return BlobPlace(path=None if path is None else str(path))
