"""Calls: one request to an endpoint each. They are not runs, and have states of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from corral.domain.errors import IllegalTransition
from corral.domain.ids import CallId, Digest, EndpointId, LeaseId, RunId

# Larger arguments and results are blobs.
INLINE_BYTES = 64 << 10
# Under this name an instance that is being prepared tells how far it is.
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
    # The instance is gone or gave it back; or it failed and is tried again.
    REQUEUE = "requeue"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    # By hand, of one that ended without a result.
    RETRY = "retry"


_S, _E = CallState, CallEvent
CALL_TRANSITIONS: Mapping[tuple[CallState, CallEvent], CallState] = {
    (_S.QUEUED, _E.ASSIGN): _S.ASSIGNED,
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _E.EXPIRE): _S.EXPIRED,
    (_S.QUEUED, _E.FAIL): _S.FAILED,
    # A result of an instance that was thought lost, while nobody else has begun.
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
    """Bytes in some format that only the two ends understand; beyond `INLINE_BYTES` they are a blob."""

    format: str
    body: bytes | None = None
    blob: Digest | None = None
    size: int = 0


class CallRecord(NamedTuple):
    """`options` and `error` are JSON. `lost` counts instances that went away while they had it."""

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
    # What changes in its life.
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
        """Its arguments and its result are not kept any more; only the record is."""
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
    """One thing that a generator gave."""

    call_id: CallId
    n: int
    format: str
    body: bytes | None
    blob: Digest | None


class QueuedCall(NamedTuple):
    """A queued call as the dispatcher sees it; the order of the fields is the order of service."""

    minus_priority: int
    ready_at: float
    id: CallId


class CallPool(NamedTuple):
    """Calls that the same instances can take. `version` 0 is whichever serves."""

    endpoint_id: EndpointId
    version: int
    key: str


@dataclass(frozen=True)
class CallFilter:
    project: str | None = None
    endpoint_id: EndpointId | None = None
    state: str | None = None
    function: str | None = None
    # Only those that ended without a result and were not cancelled.
    dead: bool | None = None
