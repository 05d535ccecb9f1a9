"""Small named objects of a run, with conditional writes: barriers, rendezvous, shared state of its ranks."""

from __future__ import annotations

import hashlib
import re

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.domain.artifacts import NamedObject
from corral.domain.errors import Conflict, InvalidInput, NotFound, TooLarge
from corral.domain.ids import HostId, LeaseId
from corral.store.transaction import Tx

MAX_BYTES = 1 << 20
MAX_OBJECTS = 10_000
_KEY = re.compile(r"[A-Za-z0-9._-]{1,128}(?:/[A-Za-z0-9._-]{1,128}){0,7}")


def put_object(
    tx: Tx,
    lease_id: LeaseId,
    epoch: int,
    key: str,
    body: bytes,
    *,
    if_match: str | None,
    if_none_match: str | None,
    host_id: HostId,
    now: float,
    policy: ServerPolicy,
) -> str:
    """Write and return the new ETag. Conflict if the condition does not hold: somebody else was first."""
    _check_key(key)
    if len(body) > MAX_BYTES:
        raise TooLarge(f"object {key} has {len(body)} bytes; {MAX_BYTES} are allowed")
    _, run = fence(tx, lease_id, epoch, host_id=host_id, now=now, policy=policy)
    old = tx.objects.get(run.id, key)
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise InvalidInput("If-None-Match takes only `*`")
        if old is not None:
            raise Conflict(f"object {key} is there already, with ETag {old.etag}")
    if if_match is not None and (old is None or old.etag != if_match.strip()):
        raise Conflict(f"object {key} has ETag {old.etag if old else 'none'}, not {if_match.strip()[:80]}")
    if old is None and tx.objects.count(run.id) >= MAX_OBJECTS:
        raise Conflict(
            f"run {run.id} has {MAX_OBJECTS} objects already",
            hint="Write over old keys; large or many values belong into files.",
        )
    version = hashlib.sha256(body + (old.etag if old else "").encode()).hexdigest()[:32]
    etag = f'"{version}"'
    tx.objects.put(NamedObject(run.id, key, etag, body, epoch, now))
    return etag


def read_object(
    tx: Tx, lease_id: LeaseId, epoch: int, key: str, *, host_id: HostId, now: float, policy: ServerPolicy
) -> NamedObject:
    _check_key(key)
    _, run = fence(tx, lease_id, epoch, host_id=host_id, now=now, policy=policy)
    found = tx.objects.get(run.id, key)
    if found is None:
        raise NotFound(f"run {run.id} has no object {key}")
    return found


def list_objects(
    tx: Tx,
    lease_id: LeaseId,
    epoch: int,
    prefix: str,
    *,
    after: str,
    limit: int,
    host_id: HostId,
    now: float,
    policy: ServerPolicy,
) -> list[str]:
    _, run = fence(tx, lease_id, epoch, host_id=host_id, now=now, policy=policy)
    return tx.objects.keys(run.id, prefix, after=after, limit=limit)


def _check_key(key: str) -> None:
    if _KEY.fullmatch(key) is None or any(part in (".", "..") for part in key.split("/")):
        raise InvalidInput(
            f"not an object key: {key[:80]!r}",
            hint="Use up to 8 parts of letters, digits, `.`, `_`, `-`, joined by `/`.",
        )
