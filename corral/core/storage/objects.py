"""Small named objects of a run's attempt, with conditional writes: what its ranks tell each other.

They are those of one attempt: the next one begins without any, and they are deleted when the run has ended.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.quotas import check_room
from corral.core.topics import TOPIC_OBJECT
from corral.domain.artifacts import NamedObject, ObjectCounts
from corral.domain.errors import (
    Conflict,
    InvalidInput,
    PreconditionFailed,
    RateLimited,
    SecretExposed,
    TooLarge,
)
from corral.domain.ids import LeaseId
from corral.domain.leases import Lease, LeaseKey
from corral.domain.runs.runs import Run
from corral.domain.secrets.redact import SecretValues
from corral.store.transaction import Tx

MAX_BYTES = 64 << 10
MAX_OBJECTS = 10_000
# By so little ranks meet, also where their project is full.
SMALL_BYTES = 64
MAX_BYTES_OF_ATTEMPT = 16 << 20
# How many calls of one lease may wait for an object at once.
MAX_WAITING = 64
_KEY = re.compile(r"[A-Za-z0-9._-]{1,128}(?:/[A-Za-z0-9._-]{1,128}){0,7}")
SecretsOf = Callable[[Tx, str], SecretValues | None]


class ObjectWrite(NamedTuple):
    """`if_none_match` is `*` or nothing. A write that is sent again has the same `request_id`."""

    name: str
    body: bytes
    if_match: str | None = None
    if_none_match: str | None = None
    request_id: str | None = None

    @property
    def etag(self) -> str:
        """Its version, which no other write makes: a write that is sent again knows its own."""
        told = (self.if_match or "", self.request_id or secrets.token_hex(16))
        version = hashlib.sha256(self.body + b"\0" + "\0".join(told).encode())
        return f'"{version.hexdigest()[:32]}"'


class ObjectRead(NamedTuple):
    """`topic` is what is announced when the object changes."""

    topic: str
    found: NamedObject | None


def put_object(
    tx: Tx, key: LeaseKey, write: ObjectWrite, *, secrets_of: SecretsOf, now: float, policy: ServerPolicy
) -> str:
    """Write and return the new ETag. PreconditionFailed if somebody else was first."""
    _check_name(write.name)
    if write.if_none_match is not None and write.if_none_match.strip() != "*":
        raise InvalidInput("If-None-Match takes only `*`")
    if len(write.body) > MAX_BYTES:
        raise TooLarge(
            f"object {write.name} has {len(write.body)} bytes; {MAX_BYTES} are allowed",
            hint="Keep large values in files: they are what artifacts and checkpoints are for.",
        )
    lease, run = fence(tx, key, now=now, policy=policy)
    old, etag = _current(tx, lease, write.name), write.etag
    if old is not None and old.etag == etag:
        # The same write arrived before, and only its answer was lost.
        return etag
    _check_condition(write.name, old, write.if_match, create=write.if_none_match is not None)
    _refuse_secrets(secrets_of(tx, run.project), write)
    counts = _counts(tx, lease)
    more = ObjectCounts(
        run.id,
        lease.attempt,
        counts.objects + (old is None),
        counts.bytes + len(write.body) - (0 if old is None else len(old.body)),
    )
    _check_room(run, counts, more)
    if len(write.body) > SMALL_BYTES:
        check_room(tx, run.project, more.bytes - counts.bytes)
    tx.objects.put_counts(more)
    tx.objects.put(NamedObject(run.id, write.name, etag, write.body, key.epoch, now))
    tx.announce(TOPIC_OBJECT, topic_key(lease, write.name))
    return etag


def read_object(tx: Tx, key: LeaseKey, name: str, *, now: float, policy: ServerPolicy) -> ObjectRead:
    _check_name(name)
    lease, _ = fence(tx, key, now=now, policy=policy)
    return ObjectRead(topic_key(lease, name), _current(tx, lease, name))


def delete_object(
    tx: Tx, key: LeaseKey, name: str, *, if_match: str | None, now: float, policy: ServerPolicy
) -> None:
    """Nothing to do where there is none, unless a version is named: PreconditionFailed then."""
    _check_name(name)
    lease, run = fence(tx, key, now=now, policy=policy)
    old = _current(tx, lease, name)
    _check_condition(name, old, if_match, create=False)
    if old is None:
        return
    counts = _counts(tx, lease)
    less = counts._replace(objects=counts.objects - 1, bytes=counts.bytes - len(old.body))
    tx.objects.put_counts(less)
    tx.objects.delete(run.id, name)
    tx.announce(TOPIC_OBJECT, topic_key(lease, name))


def list_objects(
    tx: Tx, key: LeaseKey, prefix: str, *, after: str, limit: int, now: float, policy: ServerPolicy
) -> list[str]:
    lease, run = fence(tx, key, now=now, policy=policy)
    if not _is_of_attempt(tx.objects.counts(run.id), lease):
        return []
    return tx.objects.keys(run.id, prefix, after=after, limit=limit)


def drop_ended(tx: Tx, *, limit: int) -> int:
    """Delete the objects of runs that have ended; of how many runs."""
    ended = tx.objects.ended_runs(limit)
    for run_id in ended:
        tx.objects.clear(run_id)
    return len(ended)


def topic_key(lease: Lease, name: str) -> str:
    return f"{lease.run_id}/{lease.attempt}/{name}"


class ObjectWaits:
    """How many calls of each lease wait for an object."""

    def __init__(self) -> None:
        self._waiting: Counter[LeaseId] = Counter()

    @contextmanager
    def one_of(self, lease_id: LeaseId) -> Iterator[None]:
        """RateLimited if the lease has as many as it may."""
        if self._waiting[lease_id] >= MAX_WAITING:
            raise RateLimited(
                f"{MAX_WAITING} calls of lease {lease_id} wait for objects already",
                hint="Wait for fewer objects at once.",
            )
        self._waiting[lease_id] += 1
        try:
            yield
        finally:
            self._waiting[lease_id] -= 1
            if not self._waiting[lease_id]:
                del self._waiting[lease_id]


def _is_of_attempt(counts: ObjectCounts | None, lease: Lease) -> bool:
    return counts is not None and counts.attempt == lease.attempt


def _current(tx: Tx, lease: Lease, name: str) -> NamedObject | None:
    if not _is_of_attempt(tx.objects.counts(lease.run_id), lease):
        return None
    return tx.objects.get(lease.run_id, name)


def _counts(tx: Tx, lease: Lease) -> ObjectCounts:
    """Of this attempt. What an earlier one kept is deleted before the first write."""
    counts = tx.objects.counts(lease.run_id)
    if counts is not None and counts.attempt == lease.attempt:
        return counts
    tx.objects.clear(lease.run_id)
    return ObjectCounts(lease.run_id, lease.attempt)


def _check_condition(name: str, old: NamedObject | None, if_match: str | None, *, create: bool) -> None:
    if create and old is not None:
        raise PreconditionFailed(f"object {name} is there already, with ETag {old.etag}")
    if if_match is not None and (old is None or old.etag != if_match.strip()):
        has = "is not there" if old is None else f"has ETag {old.etag}"
        raise PreconditionFailed(f"object {name} {has}, and {if_match.strip()[:80]} was asked for")


def _check_room(run: Run, before: ObjectCounts, after: ObjectCounts) -> None:
    """One that has too much already may still have less."""
    hint = "Write over old keys, or delete them; large or many values belong into files."
    if after.objects > max(before.objects, MAX_OBJECTS):
        raise Conflict(f"this attempt of run {run.id} has {MAX_OBJECTS} objects already", hint=hint)
    if after.bytes > max(before.bytes, MAX_BYTES_OF_ATTEMPT):
        raise Conflict(
            f"the objects of this attempt of run {run.id} would have {after.bytes} bytes; "
            f"{MAX_BYTES_OF_ATTEMPT} are allowed",
            hint=hint,
        )


def _refuse_secrets(values: SecretValues | None, write: ObjectWrite) -> None:
    if values is None:
        return
    if (secret := values.find(write.body) or values.find(write.name.encode())) is not None:
        raise SecretExposed(f"an object contains the value of the secret {secret}")


def _check_name(name: str) -> None:
    if _KEY.fullmatch(name) is None or any(part in (".", "..") for part in name.split("/")):
        raise InvalidInput(
            f"not an object key: {name[:80]!r}",
            hint="Use up to 8 parts of letters, digits, `.`, `_`, `-`, joined by `/`.",
        )
