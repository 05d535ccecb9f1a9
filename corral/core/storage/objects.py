"""Small named objects of a run, with conditional writes: barriers, rendezvous, shared state of its ranks."""

from __future__ import annotations

import hashlib
import re

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.quotas import add_payloads
from corral.domain.artifacts import NamedObject
from corral.domain.errors import Conflict, InvalidInput, TooLarge, found
from corral.domain.leases import LeaseKey
from corral.store.transaction import Tx

MAX_BYTES = 1 << 20
MAX_OBJECTS = 10_000
# By so little ranks meet, also where their project is full.
_SMALL_BYTES = 64
_KEY = re.compile(r"[A-Za-z0-9._-]{1,128}(?:/[A-Za-z0-9._-]{1,128}){0,7}")


def put_object(
    tx: Tx,
    key: LeaseKey,
    name: str,
    body: bytes,
    *,
    if_match: str | None,
    if_none_match: str | None,
    now: float,
    policy: ServerPolicy,
) -> str:
    """Write and return the new ETag. Conflict if the condition does not hold: somebody else was first.

    ProjectFull if the project's quota has no room for it.
    """
    _check_name(name)
    if len(body) > MAX_BYTES:
        raise TooLarge(f"object {name} has {len(body)} bytes; {MAX_BYTES} are allowed")
    _, run = fence(tx, key, now=now, policy=policy)
    old = tx.objects.get(run.id, name)
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise InvalidInput("If-None-Match takes only `*`")
        if old is not None:
            raise Conflict(f"object {name} is there already, with ETag {old.etag}")
    if if_match is not None and (old is None or old.etag != if_match.strip()):
        raise Conflict(f"object {name} has ETag {old.etag if old else 'none'}, not {if_match.strip()[:80]}")
    if old is None and tx.objects.count(run.id) >= MAX_OBJECTS:
        raise Conflict(
            f"run {run.id} has {MAX_OBJECTS} objects already",
            hint="Write over old keys; large or many values belong into files.",
        )
    more = len(body) - (0 if old is None else len(old.body))
    add_payloads(tx, run.project, more, check=len(body) > _SMALL_BYTES)
    version = hashlib.sha256(body + (old.etag if old else "").encode()).hexdigest()[:32]
    etag = f'"{version}"'
    tx.objects.put(NamedObject(run.id, name, etag, body, key.epoch, now))
    return etag


def read_object(tx: Tx, key: LeaseKey, name: str, *, now: float, policy: ServerPolicy) -> NamedObject:
    _check_name(name)
    _, run = fence(tx, key, now=now, policy=policy)
    return found(tx.objects.get(run.id, name), f"run {run.id} has no object {name}")


def list_objects(
    tx: Tx, key: LeaseKey, prefix: str, *, after: str, limit: int, now: float, policy: ServerPolicy
) -> list[str]:
    _, run = fence(tx, key, now=now, policy=policy)
    return tx.objects.keys(run.id, prefix, after=after, limit=limit)


def _check_name(name: str) -> None:
    if _KEY.fullmatch(name) is None or any(part in (".", "..") for part in name.split("/")):
        raise InvalidInput(
            f"not an object key: {name[:80]!r}",
            hint="Use up to 8 parts of letters, digits, `.`, `_`, `-`, joined by `/`.",
        )
