"""Routes: named objects by which the ranks of a run meet: an attempt's, and those that the run keeps."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool

from corral.core.storage.blobs import BlobHolder
from corral.core.storage.kept_objects import (
    KeptWrite,
    check_kept,
    delete_kept,
    holder_of_uploads,
    list_kept,
    put_kept,
    read_kept,
)
from corral.core.storage.objects import (
    ObjectRead,
    ObjectWrite,
    delete_object,
    list_objects,
    put_object,
    read_object,
)
from corral.core.wakeups import wait_for
from corral.domain.artifacts import MAX_INLINE_BYTES, KeptObject
from corral.domain.errors import NoObject, SecretExposed, TooLarge
from corral.domain.ids import Digest, digest
from corral.domain.leases import LeaseKey
from corral.server.auth import OwnLease
from corral.server.openapi import RAW_ANSWER, RAW_BODY, error_answer
from corral.server.pages import Limit, next_page
from corral.server.routes.blobs import bytes_are_gone, keep_all
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire import leases as wire

router = APIRouter(prefix="/v1", tags=["worker"])
Etag = Annotated[str | None, Header()]
ObjectKey = Annotated[str, Query(max_length=512)]
KnownEtag = Annotated[str | None, Query(max_length=80)]
_FAILED = error_answer(412, "The object is not as the condition says: somebody else was first.")


@router.put("/leases/{lease_id}/objects/{key:path}", openapi_extra=RAW_BODY, responses=_FAILED)
async def write_object(
    lease: OwnLease,
    key: str,
    svc: Svc,
    request: Request,
    if_match: Etag = None,
    if_none_match: Etag = None,
    request_id: Annotated[str | None, Query(min_length=8, max_length=64)] = None,
) -> wire.ObjectAnswer:
    """A small named object of the run's attempt; `If-None-Match: *` creates, `If-Match: ETAG` replaces that
    version. Sent again with the same `request_id`, it is answered as the first time."""
    write = ObjectWrite(key, await request.body(), if_match, if_none_match, request_id)

    def unit(tx: Tx) -> str:
        now = svc.clock.now()
        return put_object(tx, lease, write, secrets_of=svc.redactor.of, now=now, policy=svc.policy)

    return wire.ObjectAnswer(key=key, etag=await svc.store.write(unit))


@router.get("/leases/{lease_id}/objects/{key:path}", response_class=Response, responses=RAW_ANSWER)
async def get_object(
    lease: OwnLease,
    key: str,
    svc: Svc,
    wait_s: Annotated[float, Query(ge=0, le=60)] = 0.0,
    changed_from: KnownEtag = None,
) -> Response:
    """Read a small named object of the run's attempt; its version is in `ETag`. With `wait_s` the answer
    comes when it exists, or is another version than `changed_from`, or the time is over."""
    read = await _look(svc, lease, key)
    if wait_s and not _is_wanted(read, changed_from):
        with svc.object_waits.one_of(lease.id):
            read = await _changed(svc, lease, key, read, changed_from, wait_s)
    if read.found is None:
        raise NoObject(f"this attempt has no object {key}")
    headers = {"ETag": read.found.etag}
    return Response(read.found.body, media_type="application/octet-stream", headers=headers)


async def _look(svc: Services, lease: LeaseKey, key: str) -> ObjectRead:
    # A fenced read may take a lease up again, which is a write.
    return await svc.store.write(
        lambda tx: read_object(tx, lease, key, now=svc.clock.now(), policy=svc.policy)
    )


def _is_wanted(read: ObjectRead, changed_from: str | None) -> bool:
    """One that was deleted has changed too."""
    if read.found is None:
        return changed_from is not None
    return read.found.etag != changed_from


async def _changed(
    svc: Services, lease: LeaseKey, key: str, read: ObjectRead, changed_from: str | None, wait_s: float
) -> ObjectRead:
    until = asyncio.get_running_loop().time() + wait_s
    with svc.hub.watch(wake_key(read.topic)) as woken:
        # It may have changed before it was watched.
        read = await _look(svc, lease, key)
        while not _is_wanted(read, changed_from) and not svc.hub.closing:
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0 or not await wait_for(woken, left_s):
                break
            woken.clear()
            read = await _look(svc, lease, key)
    return read


def wake_key(topic: str) -> str:
    return f"object:{topic}"


@router.delete("/leases/{lease_id}/objects/{key:path}", status_code=204, responses=_FAILED)
async def remove_object(lease: OwnLease, key: str, svc: Svc, if_match: Etag = None) -> None:
    """Delete a small named object of the run's attempt, if it is there; `If-Match: ETAG` that version."""

    def unit(tx: Tx) -> None:
        delete_object(tx, lease, key, if_match=if_match, now=svc.clock.now(), policy=svc.policy)

    await svc.store.write(unit)


@router.get("/leases/{lease_id}/objects")
async def get_objects(
    lease: OwnLease, svc: Svc, prefix: ObjectKey = "", after: ObjectKey = "", limit: Limit = 1000
) -> wire.ObjectList:
    """List the keys of the small named objects of the run's attempt."""

    def unit(tx: Tx) -> list[str]:
        now = svc.clock.now()
        return list_objects(tx, lease, prefix, after=after, limit=limit, now=now, policy=svc.policy)

    keys = await svc.store.write(unit)
    return wire.ObjectList(keys=keys, next=next_page(keys, limit, str))


@router.put("/leases/{lease_id}/kept/{key:path}", openapi_extra=RAW_BODY, responses=_FAILED)
async def write_kept_object(
    lease: OwnLease,
    key: str,
    svc: Svc,
    request: Request,
    sha256: Annotated[str | None, Query(max_length=64)] = None,
    size: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    if_match: Etag = None,
    if_none_match: Etag = None,
    request_id: Annotated[str | None, Query(min_length=8, max_length=64)] = None,
) -> wire.ObjectAnswer:
    """A named object that the run keeps over its attempts. The body is its content, up to 1 MiB; a larger one
    is uploaded before, as a blob with `passing=true`, and named by `sha256` and `size`. Conditions and
    `request_id` as for an object of an attempt."""
    body = None if sha256 is not None else await _short_body(request)
    sha, size = (digest(sha256 or ""), size) if body is None else (_digest_of(body), len(body))
    write = KeptWrite(key, sha, size, if_match, if_none_match, request_id)
    if body is not None:
        await _keep_inline(lease, write, body, svc)
    etag = await svc.store.write(
        lambda tx: put_kept(tx, lease, write, now=svc.clock.now(), policy=svc.policy)
    )
    return wire.ObjectAnswer(key=key, etag=etag)


async def _short_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_INLINE_BYTES:
            raise TooLarge(
                f"a body of more than {MAX_INLINE_BYTES} bytes", hint="Upload it as a blob, and name that."
            )
    return body


def _digest_of(body: bytes) -> Digest:
    return Digest(hashlib.sha256(body).hexdigest())


async def _keep_inline(lease: LeaseKey, write: KeptWrite, body: bytes, svc: Services) -> None:
    """Nothing is stored for a write that is refused anyway."""

    def unit(tx: Tx) -> BlobHolder:
        now = svc.clock.now()
        held = check_kept(tx, lease, write, now=now, policy=svc.policy)
        values = svc.redactor.of(tx, held.project)
        if values is not None and (secret := values.find(body)) is not None:
            raise SecretExposed(f"an object contains the value of the secret {secret}")
        return holder_of_uploads(held, now=now)

    await keep_all([(write.digest, body)], await svc.store.write(unit), svc)


@router.get(
    "/leases/{lease_id}/kept/{key:path}", response_class=StreamingResponse, responses=RAW_ANSWER | _FAILED
)
async def get_kept_object(
    lease: OwnLease,
    key: str,
    svc: Svc,
    start: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    length: Annotated[int | None, Query(ge=0, lt=2**62)] = None,
    if_match: Etag = None,
) -> StreamingResponse:
    """The content of an object that the run keeps, or `length` bytes of it from `start` on; its version is in
    `ETag`."""

    def unit(tx: Tx) -> KeptObject:
        return read_kept(tx, lease, key, if_match=if_match, now=svc.clock.now(), policy=svc.policy)

    # A fenced read may take a lease up again, which is a write.
    found = await svc.store.write(unit)
    start = min(start, found.size)
    count = found.size - start if length is None else min(length, found.size - start)
    try:
        chunks = await svc.in_thread(lambda: svc.blobs.read(found.digest, start=start, length=count))
    except KeyError:
        raise bytes_are_gone(found.digest) from None
    headers = {"Content-Length": str(count), "ETag": found.etag}
    return StreamingResponse(
        iterate_in_threadpool(chunks), headers=headers, media_type="application/octet-stream"
    )


@router.delete("/leases/{lease_id}/kept/{key:path}", status_code=204)
async def remove_kept_object(lease: OwnLease, key: str, svc: Svc) -> None:
    """Delete an object that the run keeps, if it is there."""
    await svc.store.write(lambda tx: delete_kept(tx, lease, key, now=svc.clock.now(), policy=svc.policy))


@router.get("/leases/{lease_id}/kept")
async def get_kept_objects(
    lease: OwnLease, svc: Svc, prefix: ObjectKey = "", after: ObjectKey = "", limit: Limit = 1000
) -> wire.KeptObjectList:
    """List the objects that the run keeps, by key, and tell the server's time."""
    now = svc.clock.now()

    def unit(tx: Tx) -> list[KeptObject]:
        return list_kept(tx, lease, prefix, after=after, limit=limit, now=now, policy=svc.policy)

    found = await svc.store.write(unit)
    shown = [
        wire.KeptObjectView(key=one.key, size=one.size, etag=one.etag, modified=one.updated_at)
        for one in found
    ]
    return wire.KeptObjectList(objects=shown, next=next_page(found, limit, lambda one: one.key), now=now)
