"""From ends of calls to notices that wait to be sent, in the transaction that ends them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from corral.core.webhooks.notices import MOST_WAITING, VERSION, keep
from corral.domain.calls import CALL_FINAL, CallRecord
from corral.domain.webhooks.deliveries import wants
from corral.store.transaction import Tx


def tell(tx: Tx, calls: Sequence[CallRecord], *, now: float) -> None:
    """One delivery for each of them that has ended and each webhook that asks for it.

    Where a receiver has been away for so long that thousands wait for it, no more are made.
    """
    ended = [call for call in calls if call.state in CALL_FINAL]
    if not ended:
        return
    for hook in tx.webhooks.of_calls():
        patterns = frozenset(json.loads(hook.events))
        mine = [
            call
            for call in ended
            if hook.project in (None, call.project) and wants(patterns, f"call.{call.state}")
        ]
        if mine and tx.webhooks.waiting(hook.id, MOST_WAITING) < MOST_WAITING:
            for call in mine:
                keep(tx, hook, f"call.{call.state}", notice_of(tx, call), next_at=now, now=now)


def notice_of(tx: Tx, call: CallRecord) -> dict[str, Any]:
    """Neither arguments nor result; what an exception says was redacted where it was raised."""
    endpoint = tx.endpoints.get(call.endpoint_id)
    error = json.loads(call.error) if call.error is not None else {}
    return {
        "version": VERSION,
        "type": f"call.{call.state}",
        "at": call.ended_at,
        "number": call.attempt,
        "event": {"type": "end", "actor": "corral", "data": {"state": call.state}},
        "run": None,
        "call": {
            "id": call.id,
            "project": call.project,
            "endpoint": endpoint.name if endpoint else None,
            "function": call.function,
            "state": call.state,
            "attempt": call.attempt,
            "lost": call.lost,
            "key": call.key,
            "run": call.run_id,
            "error": error.get("type"),
            "message": str(error["message"])[:2000] if "message" in error else None,
            "created_at": call.created_at,
            "started_at": call.started_at,
            "ended_at": call.ended_at,
            "ran_s": call.ran_s,
            "result_bytes": call.result_bytes,
            "submitted_by": call.submitted_by,
        },
    }
