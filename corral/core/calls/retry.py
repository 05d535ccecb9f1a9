"""Trying a call again: by its options after a failure, or because somebody asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.calls.transitions import TOPIC_CALL_READY, end, locked, ready_key, requeue
from corral.domain.calls import CALL_FINAL, CallEvent, CallOptions, CallRecord, CallState
from corral.domain.errors import Conflict
from corral.domain.ids import CallId
from corral.store.transaction import Tx


def retry_or_fail(tx: Tx, call: CallRecord, error: Mapping[str, Any], *, now: float) -> CallRecord:
    """After an attempt that ended with this error."""
    options = CallOptions.read(call.options)
    # An attempt that was lost with its instance is not one of the function's.
    if options.allows_retry(error, call.attempt - call.lost):
        return requeue(tx, call, at=now + options.pause_s(call.id, call.attempt))
    return end(tx, call, CallEvent.FAIL, now=now)


def retry(tx: Tx, call_id: CallId, *, now: float) -> CallRecord:
    """Queue a call that ended without a result once more, under its own id."""
    call = locked(tx, call_id)
    if call.state not in CALL_FINAL or call.state is CallState.SUCCEEDED:
        raise Conflict(
            f"call {call_id} is {call.state}; only one that ended without a result can be tried again",
            hint="Make a new call for another result.",
        )
    if call.forgotten:
        raise Conflict(
            f"the arguments of call {call_id} are not kept any more", hint="Make a new call with them."
        )
    options = CallOptions.read(call.options)
    tx.calls.delete_chunks(call_id)
    call = call.stepped(CallEvent.RETRY)._replace(
        # Beyond every attempt that an instance may still have: its outcome must not fit the new one.
        attempt=call.attempt + 2,
        lost=0,
        lease_id=None,
        ended_at=None,
        forget_at=None,
        ready_at=now,
        error=None,
        chunks=0,
        expires_at=None if options.ttl_s is None else now + options.ttl_s,
    )
    tx.calls.save(call)
    tx.announce(TOPIC_CALL_READY, ready_key(call))
    return call
