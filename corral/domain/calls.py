"""Calls: one request to an endpoint each. They are not runs, and have states of their own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from corral.domain.canonical import canonical
from corral.domain.errors import IllegalTransition
from corral.domain.ids import CallId, Digest, EndpointId, LeaseId, RunId

# Larger arguments and results are blobs.
INLINE_BYTES = 64 << 10
# The key under which an instance that is being prepared reports how far it is.
PREPARING = "preparing"


class CallState(StrEnum):
    QUEUED = "queued"
    ASSIGNED = "assigned"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class CallEvent(StrEnum):
    ASSIGN = "assign"
    # The instance is gone or gave the call back, or the call failed and is retried.
    REQUEUE = "requeue"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    # By hand, if the call ended without a result.
    RETRY = "retry"


_S, _E = CallState, CallEvent
CALL_TRANSITIONS: Mapping[tuple[CallState, CallEvent], CallState] = {
    (_S.QUEUED, _E.ASSIGN): _S.ASSIGNED,
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _E.EXPIRE): _S.EXPIRED,
    (_S.QUEUED, _E.FAIL): _S.FAILED,
    # An instance that was thought lost reports a result before another begins.
    (_S.QUEUED, _E.SUCCEED): _S.SUCCEEDED,
    (_S.ASSIGNED, _E.REQUEUE): _S.QUEUED,
    (_S.ASSIGNED, _E.SUCCEED): _S.SUCCEEDED,
    (_S.ASSIGNED, _E.FAIL): _S.FAILED,
    (_S.ASSIGNED, _E.CANCEL): _S.CANCELLED,
    (_S.FAILED, _E.RETRY): _S.QUEUED,
    (_S.CANCELLED, _E.RETRY): _S.QUEUED,
    (_S.EXPIRED, _E.RETRY): _S.QUEUED,
}
CALL_FINAL = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED, _S.EXPIRED})


def step_call(state: CallState, event: CallEvent) -> CallState:
    try:
        return CALL_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a call that is {state} cannot {event}") from None


class Payload(NamedTuple):
    """Bytes in a format that only caller and function understand; a blob if larger than `INLINE_BYTES`."""

    format: str
    body: bytes | None = None
    blob: Digest | None = None
    size: int = 0


@dataclass(frozen=True)
class CallOptions:
    """`retry_on` names exception types, `Module.Name` or `Name`; an empty one means all of them.

    `reads` is a form of plain results that the caller knows beside the first.
    """

    timeout_s: float | None = None
    ttl_s: float | None = None
    keep_s: float = 7 * 86400.0
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    delay_s: float = 1.0
    backoff: float = 2.0
    max_delay_s: float = 60.0
    reads: str | None = None

    @staticmethod
    @lru_cache(maxsize=1024)
    def read(text: str) -> CallOptions:
        table = json.loads(text)
        return CallOptions(**{**table, "retry_on": tuple(table.get("retry_on", ()))})

    @lru_cache(maxsize=1024)  # noqa: B019 - options are few, and the calls that share them are many
    def text(self) -> str:
        return canonical(vars(self))

    def allows_retry(self, error: Mapping[str, Any], attempt: int) -> bool:
        if attempt > self.retries:
            return False
        names = {str(name) for name in error.get("bases", ())}
        return not self.retry_on or bool(names & set(self.retry_on))

    def pause_s(self, call_id: CallId, attempt: int) -> float:
        """Between half and all of the delay. The call's id spreads it, because a unit may run twice and must
        give the same both times."""
        whole = min(self.max_delay_s, self.delay_s * self.backoff ** (attempt - 1))
        spread = zlib.crc32(f"{call_id}:{attempt}".encode()) % 1000 / 1000
        return whole * (0.5 + 0.5 * spread)


class CallRecord(NamedTuple):
    """`options` and `error` are JSON. `lost` counts the instances that died while they ran it."""

    id: CallId
    project: str
    endpoint_id: EndpointId
    version: int
    pool: str
    function: str
    priority: int
    key: str | None
    parent_id: CallId | None
    depth: int
    submitted_by: str
    options: str
    args_format: str
    args: bytes | None
    args_blob: Digest | None
    args_bytes: int
    created_at: float
    ready_at: float
    expires_at: float | None = None
    # The fields from here on change.
    state: CallState = CallState.QUEUED
    attempt: int = 0
    lost: int = 0
    lease_id: LeaseId | None = None
    run_id: RunId | None = None
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float = 0.0
    result_format: str | None = None
    result: bytes | None = None
    result_blob: Digest | None = None
    result_bytes: int = 0
    error: str | None = None
    chunks: int = 0
    forget_at: float | None = None

    @property
    def forgotten(self) -> bool:
        """Whether its arguments and result are deleted, and only the record is left."""
        return not self.args_format

    @property
    def arguments(self) -> Payload:
        return Payload(self.args_format, self.args, self.args_blob, self.args_bytes)

    @property
    def outcome(self) -> Payload | None:
        if self.result_format is None:
            return None
        return Payload(self.result_format, self.result, self.result_blob, self.result_bytes)

    def stepped(self, event: CallEvent) -> CallRecord:
        return self._replace(state=step_call(self.state, event))


class Chunk(NamedTuple):
    """One value that a generator gave."""

    call_id: CallId
    n: int
    format: str
    body: bytes | None
    blob: Digest | None


class CallOutcome(NamedTuple):
    """What an instance reports of one call. `error` is set if it failed."""

    call_id: CallId
    attempt: int
    result: Payload | None
    error: Mapping[str, Any] | None
    ran_s: float
    # Given back before it began, because the instance stops.
    gave_back: bool = False
    cancelled: bool = False
    # Of a generator: how many values it gave in this attempt.
    chunks: int | None = None


class ChunkBatch(NamedTuple):
    """Values that a generator gave one after the other; `first` is the number of the first."""

    call_id: CallId
    attempt: int
    first: int
    parts: Sequence[Payload]


class QueuedCall(NamedTuple):
    """A call's place in its queue; the order of the fields is the order of service."""

    minus_priority: int
    ready_at: float
    id: CallId


class CallPool(NamedTuple):
    """Calls that the same instances can run. `version` 0 is the one that serves now."""

    endpoint_id: EndpointId
    version: int
    key: str


@dataclass(frozen=True)
class CallFilter:
    project: str | None = None
    endpoint_id: EndpointId | None = None
    state: str | None = None
    function: str | None = None
    # Only calls that failed or expired.
    dead: bool | None = None
