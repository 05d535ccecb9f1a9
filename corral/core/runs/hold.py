"""Holding a run back by hand, and letting it go."""

from __future__ import annotations

from corral.core.runs.dependencies import left, move, release
from corral.core.runs.transitions import lock_run, record
from corral.domain.errors import Conflict
from corral.domain.ids import RunId
from corral.domain.runs.holds import HoldKind, held_by
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunEvent, RunState
from corral.store.transaction import Tx


def hold(tx: Tx, run_id: RunId, *, actor: str, now: float) -> Run:
    """Nobody gets it until it is released. One that waits for something else is held all the same."""
    run = lock_run(tx, run_id)
    reason = held_by(actor)
    data = {"hold_reason": reason}
    if run.state is RunState.QUEUED:
        return move(tx, run, RunEvent.HOLD, at=now, actor=actor, data=data, hold_reason=reason)
    if run.state is not RunState.HELD:
        raise Conflict(
            f"run {run_id} is {run.state}; only a run that waits can be held",
            hint=f"Stop it with `corral cancel {run_id}`."
            if run.ended_at is None
            else "Nothing was changed.",
        )
    if run.hold is HoldKind.PERSON:
        return run
    if run.hold is HoldKind.REMOVED:
        raise Conflict(f"run {run_id} is held already: it was removed from its manifest")
    held = run._replace(hold_reason=reason, not_before=None)
    held = record(tx, held, "hold", at=now, actor=actor, data={**data, "state": run.state})
    # Between two tries it had a place in its group.
    left(tx, run, held, now=now)
    return held


def let_go(tx: Tx, run_id: RunId, *, actor: str, now: float) -> Run:
    """It is queued, unless something else holds it; the wait between two tries is cut short too."""
    run = lock_run(tx, run_id)
    if run.state is not RunState.HELD:
        raise Conflict(f"run {run_id} is {run.state}, not held", hint="Nothing was changed.")
    if run.hold in (HoldKind.PERSON, HoldKind.BACKOFF):
        done = release(tx, run, actor=actor, now=now)
        # A parent may have failed meanwhile: then it ended, and its own children with it.
        left(tx, run, done, now=now)
        return done
    if run.hold is HoldKind.REMOVED:
        raise Conflict(
            f"run {run_id} was removed from its manifest",
            hint="Apply the manifest with the run in it, or submit the run by itself.",
        )
    raise Conflict(
        f"run {run_id} is not held by anybody: {run.hold_reason}",
        hint="It is queued by itself once that is over.",
    )
