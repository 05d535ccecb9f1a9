"""Cancelling a run."""

from __future__ import annotations

from corral.core.policy import ServerPolicy
from corral.core.runs.dependencies import move
from corral.core.runs.stop import ask_to_stop
from corral.core.runs.transitions import lock_run
from corral.domain.errors import Conflict
from corral.domain.ids import RunId
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL, RunEvent, RunState
from corral.store.transaction import Tx


def check_cancel(run: Run) -> None:
    """Conflict if the run is asked to end already; the message goes on after its name."""
    if run.state in (RunState.STOPPING, RunState.HALTING):
        raise Conflict(f"is {run.state} already")


def cancel(tx: Tx, run_id: RunId, *, reason: str, actor: str, now: float, policy: ServerPolicy) -> Run:
    """A run that waits is cancelled at once; one that runs is told to stop at its next beat."""
    run = lock_run(tx, run_id)
    if run.state in FINAL:
        raise Conflict(f"run {run_id} is {run.state} already", hint="Nothing was changed.")
    if run.state in (RunState.STOPPING, RunState.HALTING):
        return run
    detail = reason or None
    if run.state in (RunState.RUNNING, RunState.YIELDING):
        return ask_to_stop(
            tx, run, RunEvent.CANCEL, Reason.CANCELLED, detail, actor=actor, now=now, policy=policy
        )
    return move(
        tx,
        run,
        RunEvent.CANCEL,
        at=now,
        actor=actor,
        data={"reason": reason},
        reason=Reason.CANCELLED,
        detail=detail,
        ended_at=now,
        hold_reason=None,
        not_before=None,
    )
