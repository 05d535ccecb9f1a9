"""How a call is queued again, cancelled, expired, retried and forgotten, and what other servers hear."""

from __future__ import annotations

import math
from collections.abc import Sequence

from corral.core.webhooks.notices import tell_of_calls
from corral.domain.calls import (
    CALL_FINAL,
    CallEvent,
    CallOptions,
    CallPool,
    CallRecord,
    CallState,
    QueuedCall,
)
from corral.domain.canonical import canonical
from corral.domain.errors import Conflict, found
from corral.domain.ids import CallId, EndpointId, LeaseId
from corral.store.transaction import Tx

TOPIC_CALL = "call"
TOPIC_CALL_READY = "call_ready"
# How long the record of an ended call is kept, even without its result.
RECORD_S = 30 * 86400.0


def ready_key(call: CallRecord) -> str:
    return f"{call.endpoint_id}|{call.version}|{call.priority}|{call.ready_at!r}|{call.id}|{call.pool}"


def parse_ready_call(key: str) -> tuple[CallPool, QueuedCall]:
    endpoint_id, version, priority, ready_at, call_id, pool = key.split("|", 5)
    place = QueuedCall(-int(priority), float(ready_at), CallId(call_id))
    return CallPool(EndpointId(endpoint_id), int(version), pool), place


def locked(tx: Tx, call_id: CallId) -> CallRecord:
    hint = "List them with `corral calls ls`."
    return found(tx.calls.lock(call_id), f"there is no call {call_id}", hint=hint)


def requeue(tx: Tx, call: CallRecord, *, at: float, lost_by: LeaseId | None = None) -> CallRecord:
    """`lost_by` is a lease that ran out with it: if its host comes back first, it keeps the call."""
    if call.state is not CallState.QUEUED:
        call = call.stepped(CallEvent.REQUEUE)
    call = call._replace(lease_id=lost_by, ready_at=at)
    tx.calls.save(call)
    tx.announce(TOPIC_CALL_READY, ready_key(call))
    return call


def end(tx: Tx, call: CallRecord, event: CallEvent, *, now: float) -> CallRecord:
    """Whoever ends several calls sends the notices of all of them at once."""
    keep_s = CallOptions.read(call.options).keep_s
    forget_at = None if math.isinf(keep_s) else now + keep_s
    call = call.stepped(event)._replace(ended_at=now, forget_at=forget_at)
    tx.calls.save(call)
    tx.announce(TOPIC_CALL, call.id)
    return call


def end_and_tell(tx: Tx, call: CallRecord, event: CallEvent, *, now: float) -> CallRecord:
    call = end(tx, call, event, now=now)
    tell_of_calls(tx, [call], now=now)
    return call


def with_error(call: CallRecord, kind: str, message: str, bases: Sequence[str] = ()) -> CallRecord:
    return call._replace(error=canonical({"type": kind, "message": message, "bases": list(bases)}))


def fail(tx: Tx, call: CallRecord, kind: str, message: str, *, now: float) -> CallRecord:
    """End it with an error that the server itself raises."""
    return end_and_tell(tx, with_error(call, kind, message, [kind]), CallEvent.FAIL, now=now)


def cancel(tx: Tx, call_id: CallId, *, now: float) -> CallRecord:
    """At once for everybody who waits; an instance that runs it hears of it in its next exchange."""
    call = locked(tx, call_id)
    if call.state in CALL_FINAL:
        raise Conflict(f"call {call_id} is {call.state} already", hint="Nothing was changed.")
    return end_and_tell(tx, call, CallEvent.CANCEL, now=now)


def expire(tx: Tx, call_id: CallId, *, now: float) -> None:
    call = tx.calls.lock(call_id)
    if call is None or call.state is not CallState.QUEUED or call.expires_at is None or call.expires_at > now:
        return
    why = f"it waited {call.expires_at - call.created_at:g} s, its whole time to live"
    end_and_tell(tx, with_error(call, "Expired", why), CallEvent.EXPIRE, now=now)


def forget(tx: Tx, call_id: CallId, *, now: float) -> None:
    """Delete the arguments and the result of an ended call, and later its record."""
    call = tx.calls.lock(call_id)
    if call is None or call.forget_at is None or call.forget_at > now:
        return
    tx.blobs.unpin(f"call:{call_id}")
    gone_at = (call.ended_at or now) + RECORD_S
    if call.forgotten or gone_at <= now:
        tx.calls.delete(call_id)
    else:
        tx.calls.drop_payloads(call_id, forget_at=gone_at)
