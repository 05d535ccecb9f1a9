"""Ctrl-C while a program waits for calls: those that only the wait was for are cancelled."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from corral.errors import CorralError
from corral.functions.backend import EndpointTarget, OutgoingCall, backend

# So many are named; a map may have a thousand.
_NAMED = 5


def cancel_calls(call_ids: Iterable[str]) -> list[str]:
    """Cancel what nobody waits for, and say which were; what cannot be cancelled is told on stderr."""
    cancelled: list[str] = []
    for call_id in list(call_ids):
        try:
            backend().cancel(call_id)
        except CorralError as error:
            # One that ended meanwhile needs none. The caller goes on to its own end: this must not hide it.
            if error.code != "conflict":
                sys.stderr.write(f"corral: call {call_id} may go on, it was not cancelled: {error.message}\n")
            continue
        cancelled.append(call_id)
    return cancelled


def interrupted(call_ids: Sequence[str]) -> None:
    """Cancel them, and say so on stderr."""
    cancelled = cancel_calls(call_ids)
    if cancelled:
        more = f" and {len(cancelled) - _NAMED} more" if len(cancelled) > _NAMED else ""
        sys.stderr.write(f"corral: cancelled call {', '.join(cancelled[:_NAMED])}{more}\n")


def interrupted_making(target: EndpointTarget, asks: Sequence[OutgoingCall]) -> None:
    """The same for calls whose ids have not come yet: their keys lead to them."""
    if not asks:
        return
    try:
        made = backend().make(target, asks, 0)
    except CorralError as error:
        sys.stderr.write(f"corral: whether calls were made is not known: {error.message}\n")
        return
    interrupted([seen.id for seen in made if not seen.ended])
