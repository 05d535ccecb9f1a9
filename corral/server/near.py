"""Routes: bytes of clients on the server's own machine, which are moved and read in place, not sent."""

from __future__ import annotations

import ipaddress

from fastapi import APIRouter, Request

from corral.core.room import check_room
from corral.domain.errors import NotFound, TooLarge
from corral.server.blobs import (
    ForLease,
    ForUser,
    Holder,
    Readable,
    bytes_are_gone,
    remember,
    wait_while_condemned,
)
from corral.server.callers import Anyone, origin_of
from corral.server.services import Services, Svc
from corral.wire.leases import BlobStored, NearRequest, NearView, PlaceView

router = APIRouter(prefix="/v1", tags=["blobs"])


@router.get("/near")
async def near(token: Anyone, svc: Svc, request: Request) -> NearView:
    """The folder for files that need not be sent, if the caller may be on this machine.

    Whether it is, it finds out itself: then the folder is there, and it may write to it.
    """
    if not _from_here(request):
        return NearView(folder=None)
    folder = await svc.in_thread(svc.blobs.near)
    return NearView(folder=None if folder is None else str(folder))


def _from_here(request: Request) -> bool:
    try:
        return ipaddress.ip_address(origin_of(request)).is_loopback
    except ValueError:
        return False


@router.post("/projects/{project}/blobs/near", status_code=201)
async def near_user(body: NearRequest, holder: ForUser, svc: Svc) -> BlobStored:
    """Take a file that was put into the folder."""
    return await _taken(body.name, holder, svc)


@router.post("/leases/{lease_id}/blobs/near", status_code=201)
async def near_lease(body: NearRequest, holder: ForLease, svc: Svc) -> BlobStored:
    """Take a file that was put into the folder, for a lease."""
    return await _taken(body.name, holder, svc)


async def _taken(name: str, holder: Holder, svc: Services) -> BlobStored:
    try:
        taken = await svc.in_thread(lambda: svc.blobs.take(name))
    except KeyError:
        raise NotFound(f"there is no file {name} near this server", hint="Upload it.") from None
    try:
        sha, size = taken.digest, taken.size
        if size > svc.limits.max_blob_bytes:
            raise TooLarge(f"a blob may have {svc.limits.max_blob_bytes} bytes at most")
        await svc.store.read(lambda tx: check_room(tx, holder.project, {sha: size}))
        await wait_while_condemned(sha, svc)
        await svc.in_thread(taken.commit)
    finally:
        await svc.in_thread(taken.close)
    svc.counters.uploaded_bytes += size
    await remember(sha, size, holder, svc)
    return BlobStored(sha256=sha, size=size, existed=False)


@router.get("/blobs/{sha256}/place")
async def place(sha: Readable, svc: Svc, request: Request) -> PlaceView:
    """Where a blob that the caller may read lies, if it may be on this machine."""
    if not _from_here(request):
        return PlaceView(path=None)
    try:
        path = await svc.in_thread(lambda: svc.blobs.place(sha))
    except KeyError:
        raise bytes_are_gone(sha) from None
    return PlaceView(path=None if path is None else str(path))
