"""Cancelling a call."""

from __future__ import annotations

from corral.core.calls.transitions import end_and_tell, locked
from corral.domain.calls import CALL_FINAL, CallEvent, CallRecord
from corral.domain.errors import Conflict
from corral.domain.ids import CallId
from corral.store.transaction import Tx


def cancel(tx: Tx, call_id: CallId, *, now: float) -> CallRecord:
    """At once for everybody who waits; an instance that runs it hears of it in its next exchange."""
    call = locked(tx, call_id)
    if call.state in CALL_FINAL:
        raise Conflict(f"call {call_id} is {call.state} already", hint="Nothing was changed.")
    return end_and_tell(tx, call, CallEvent.CANCEL, now=now)
