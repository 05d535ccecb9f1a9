"""Asking a run to stop, and settling it once it has stopped."""

from __future__ import annotations

from corral.core.policy import ServerPolicy
from corral.core.runs.dependencies import move
from corral.core.topics import TOPIC_STOP
from corral.domain.ids import RunId
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RankEvent, RankState, RunEvent, RunState
from corral.store.transaction import Tx


def ask_to_stop(
    tx: Tx,
    run: Run,
    event: RunEvent,
    reason: Reason,
    detail: str | None,
    *,
    actor: str,
    now: float,
    policy: ServerPolicy,
) -> Run:
    for lease in tx.leases.live_of_run(run.id):
        tx.announce(TOPIC_STOP, lease.id)
        rank = tx.attempts.rank(run.id, lease.attempt, lease.rank)
        if rank is not None and rank.state is RankState.RUNNING:
            tx.attempts.save_rank(rank.stepped(RankEvent.STOP))
    run = run._replace(stop_reason=reason, stop_deadline=now + policy.stop_s(run), detail=detail)
    return move(tx, run, event, at=now, actor=actor, data={"reason": reason, "detail": detail})


def ask_to_yield(tx: Tx, run_id: RunId, why: str, *, actor: str, now: float, policy: ServerPolicy) -> bool:
    """Ask a running run to write a checkpoint and make room; it is queued again, free of charge."""
    run = tx.runs.lock(run_id)
    if run is None or run.state is not RunState.RUNNING:
        return False
    ask_to_stop(tx, run, RunEvent.PREEMPT, Reason.YIELDED, why, actor=actor, now=now, policy=policy)
    return True


def settle_stop(
    tx: Tx, run: Run, event: RunEvent, *, now: float, actor: str, data: dict[str, object] | None = None
) -> Run:
    """A run that was told to stop has stopped: cancelled, failed or queued again, as its table says."""
    reason = run.stop_reason or Reason.UNKNOWN
    if run.state is RunState.YIELDING:
        run = run.charged(reason)._replace(ended_at=None)
    else:
        tx.attempts.close(run.id, run.attempt, now)
        run = run._replace(ended_at=now)
    # Of a gang rank 0 may have left something before the others were stopped: that is no result.
    run = run._replace(stop_deadline=None, stop_reason=None, reason=reason, artifact_id=None)
    return move(tx, run, event, at=now, actor=actor, data={**(data or {}), "reason": reason})
