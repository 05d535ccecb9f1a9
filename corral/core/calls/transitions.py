"""How a call is queued again and how it ends, and what the other servers hear of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from corral.core.webhooks.call_notices import tell
from corral.domain.calls import CallEvent, CallOptions, CallPool, CallRecord, CallState, QueuedCall
from corral.domain.canonical import canonical
from corral.domain.errors import NotFound
from corral.domain.ids import CallId, EndpointId
from corral.store.transaction import Tx

TOPIC_CALL = "call"
TOPIC_CALL_READY = "call_ready"


def ready_key(call: CallRecord) -> str:
    return f"{call.endpoint_id}|{call.version}|{call.priority}|{call.ready_at!r}|{call.id}|{call.pool}"


def parse_ready_call(key: str) -> tuple[CallPool, QueuedCall]:
    endpoint_id, version, priority, ready_at, call_id, pool = key.split("|", 5)
    place = QueuedCall(-int(priority), float(ready_at), CallId(call_id))
    return CallPool(EndpointId(endpoint_id), int(version), pool), place


def locked(tx: Tx, call_id: CallId) -> CallRecord:
    call = tx.calls.lock(call_id)
    if call is None:
        raise NotFound(f"there is no call {call_id}", hint="List them with `corral calls ls`.")
    return call


def requeue(tx: Tx, call: CallRecord, *, at: float) -> CallRecord:
    if call.state is not CallState.QUEUED:
        call = call.stepped(CallEvent.REQUEUE)
    call = call._replace(lease_id=None, ready_at=at)
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
    tell(tx, [call], now=now)
    return call


def with_error(call: CallRecord, kind: str, message: str, bases: Sequence[str] = ()) -> CallRecord:
    return call._replace(error=canonical({"type": kind, "message": message, "bases": list(bases)}))


def fail(tx: Tx, call: CallRecord, kind: str, message: str, *, now: float) -> CallRecord:
    """End it with an error that the server itself raises."""
    return end_and_tell(tx, with_error(call, kind, message, [kind]), CallEvent.FAIL, now=now)


def cannot_run(tx: Tx, call: CallRecord, why: str, *, now: float) -> CallRecord:
    """No instance that would take the call can be started."""
    return fail(tx, call, "CannotStart", why, now=now)
