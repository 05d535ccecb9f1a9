"""Objects that a run keeps over its attempts, with conditional writes: what its replicas meet in.

An object is a name for a blob. A pin of its own holds the blob from when the name is given until the object
is deleted or written over, or the run has ended for good.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.storage.blobs import BlobHolder, NamedBlob, check_of_lease
from corral.domain.artifacts import KeptObject
from corral.domain.errors import Conflict, InvalidInput, NoObject, PreconditionFailed
from corral.domain.ids import Digest, RunId
from corral.domain.leases import Lease, LeaseKey
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

MAX_OBJECTS = 100_000
# For so long an uploaded blob waits for its name.
PASSING_S = 3600.0
_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_=.-]*(/[A-Za-z0-9_=-][A-Za-z0-9_=.-]*)*")
_LONGEST_KEY = 512


class KeptWrite(NamedTuple):
    """`if_none_match` is `*` or nothing. A write that is sent again has the same `request_id`."""

    key: str
    digest: Digest
    size: int
    if_match: str | None = None
    if_none_match: str | None = None
    request_id: str | None = None

    @property
    def etag(self) -> str:
        """Its version, which no other write makes: a write that is sent again knows its own."""
        told = (self.digest, self.key, self.if_match or "", self.request_id or secrets.token_hex(16))
        return f'"{hashlib.sha256(chr(0).join(told).encode()).hexdigest()[:32]}"'


def holder_of_uploads(lease: Lease, *, now: float) -> BlobHolder:
    """For blobs that a lease is about to name: they are not kept for as long as it lives."""
    return BlobHolder(lease.project, f"lease:{lease.id}", now + PASSING_S)


def check_kept(tx: Tx, key: LeaseKey, write: KeptWrite, *, now: float, policy: ServerPolicy) -> Lease:
    """Refuse what `put_kept` would, before the content is stored."""
    lease, run, old = _opened(tx, key, write.key, now=now, policy=policy)
    if old is None or old.etag != write.etag:
        _check(tx, run, write, old)
    return lease


def put_kept(tx: Tx, key: LeaseKey, write: KeptWrite, *, now: float, policy: ServerPolicy) -> str:
    """Name a blob that this lease uploaded; the new ETag. PreconditionFailed if somebody else was first."""
    lease, run, old = _opened(tx, key, write.key, now=now, policy=policy)
    etag = write.etag
    if old is not None and old.etag == etag:
        # The same write arrived before, and only its answer was lost.
        return etag
    _check(tx, run, write, old)
    check_of_lease(tx, lease, [NamedBlob(write.digest, write.size)])
    if old is not None:
        _release(tx, old)
    tx.kept.put(KeptObject(run.id, write.key, etag, write.digest, write.size, key.epoch, now))
    tx.blobs.pin(run.project, [write.digest], holder=_holder(run.id, write.key), expires_at=None)
    tx.blobs.unpin_passing(f"lease:{lease.id}", run.project, write.digest)
    return etag


def read_kept(
    tx: Tx, key: LeaseKey, name: str, *, if_match: str | None, now: float, policy: ServerPolicy
) -> KeptObject:
    """NoObject if there is none; PreconditionFailed if it has another ETag by now."""
    _, run, found = _opened(tx, key, name, now=now, policy=policy)
    if found is None:
        raise NoObject(f"run {run.id} keeps no object {name}", hint="Check its name.")
    _check_match(name, found, if_match)
    return found


def delete_kept(tx: Tx, key: LeaseKey, name: str, *, now: float, policy: ServerPolicy) -> None:
    """Nothing to do where there is none."""
    _, _, old = _opened(tx, key, name, now=now, policy=policy)
    if old is not None:
        _drop(tx, old)


def list_kept(
    tx: Tx, key: LeaseKey, prefix: str, *, after: str, limit: int, now: float, policy: ServerPolicy
) -> list[KeptObject]:
    _, run = fence(tx, key, now=now, policy=policy)
    return tx.kept.below(run.id, prefix, after=after, limit=limit)


def drop_kept_of_ended(tx: Tx, *, limit: int) -> int:
    """Forget objects of runs that have ended; how many. Their blobs go with the next collection."""
    ended = tx.kept.of_ended(limit)
    _drop_all(tx, ended)
    return len(ended)


def drop_kept_of_run(tx: Tx, run_id: RunId) -> None:
    """All of a run that is being removed."""
    while found := tx.kept.below(run_id, "", after="", limit=1000):
        _drop_all(tx, found)


def _drop_all(tx: Tx, objects: Sequence[KeptObject]) -> None:
    for one in objects:
        _drop(tx, one)


def _drop(tx: Tx, one: KeptObject) -> None:
    _release(tx, one)
    tx.kept.delete(one.run_id, one.key)


def _release(tx: Tx, one: KeptObject) -> None:
    tx.blobs.unpin(_holder(one.run_id, one.key))


def _holder(run_id: RunId, key: str) -> str:
    return f"kept:{run_id}/{key}"


def _opened(
    tx: Tx, key: LeaseKey, name: str, *, now: float, policy: ServerPolicy
) -> tuple[Lease, Run, KeptObject | None]:
    """The fence holds the run, so that two who write one object come one after the other."""
    if len(name) > _LONGEST_KEY or _KEY.fullmatch(name) is None:
        raise InvalidInput(
            f"not a key of a kept object: {name[:80]!r}",
            hint="Use letters, digits and `_=.-`, with slashes between; no piece begins with a dot.",
        )
    lease, run = fence(tx, key, now=now, policy=policy)
    return lease, run, tx.kept.get(run.id, name)


def _check(tx: Tx, run: Run, write: KeptWrite, old: KeptObject | None) -> None:
    if write.if_none_match is not None:
        if write.if_none_match.strip() != "*":
            raise InvalidInput("If-None-Match takes only `*`")
        if old is not None:
            raise PreconditionFailed(f"object {write.key} is there already, with ETag {old.etag}")
    _check_match(write.key, old, write.if_match)
    if old is None and tx.kept.count(run.id) >= MAX_OBJECTS:
        raise Conflict(
            f"run {run.id} keeps {MAX_OBJECTS} objects already", hint="Delete those that nobody reads."
        )


def _check_match(name: str, old: KeptObject | None, if_match: str | None) -> None:
    if if_match is not None and (old is None or old.etag != if_match.strip()):
        has = "is not there" if old is None else f"has ETag {old.etag}"
        raise PreconditionFailed(f"object {name} {has}, and {if_match.strip()[:80]} was asked for")
