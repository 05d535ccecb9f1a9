"""Calls whose time is over: those that waited too long, and those that ended long ago."""

from __future__ import annotations

from corral.core.calls.transitions import end_and_tell, with_error
from corral.domain.calls import CallEvent, CallState
from corral.domain.ids import CallId
from corral.store.transaction import Tx

# How long the record of an ended call is kept, even without its result.
RECORD_S = 30 * 86400.0


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
