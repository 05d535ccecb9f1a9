"""Ending runs before their time: a user's cancel, limits, stalls."""

from __future__ import annotations

from corral.core.leases.fence import end_rank, known_s, settle_stop, use_time
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.runs.move import move
from corral.core.topics import TOPIC_STOP
from corral.domain.errors import Conflict, NotFound
from corral.domain.ids import LeaseId, RunId
from corral.domain.leases import LeaseState
from corral.domain.reasons import Reason
from corral.domain.runs import Run
from corral.domain.states import FINAL, STOPPING, RankEvent, RankState, RunEvent, RunState
from corral.ports.store import Tx


def cancel(tx: Tx, run_id: RunId, *, reason: str, actor: str, now: float, policy: ServerPolicy) -> Run:
    """A run that waits is cancelled at once; one that runs is told to stop at its next beat."""
    run = tx.runs.lock(run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    if run.state in FINAL:
        raise Conflict(f"run {run_id} is {run.state} already", hint="Nothing was changed.")
    if run.state in (RunState.STOPPING, RunState.HALTING):
        return run
    detail = reason or None
    if run.state in (RunState.RUNNING, RunState.YIELDING):
        return _ask_to_stop(
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


def halt_over_wall(tx: Tx, run_id: RunId, *, now: float, since: float, policy: ServerPolicy) -> None:
    """Of the present lease only what lies after `since` counts. Looked at again: it may be another lease."""
    run = tx.runs.lock(run_id)
    if run is None or run.state not in (RunState.RUNNING, RunState.YIELDING) or run.wall_limit_s is None:
        return
    begun = min((max(lease.granted_at, since) for lease in tx.leases.live_of_run(run_id)), default=now)
    if run.ran_s + now - begun < run.wall_limit_s:
        return
    detail = f"the wall limit of {run.wall_limit_s:g} s is used up"
    _ask_to_stop(tx, run, RunEvent.HALT, Reason.WALL_LIMIT, detail, actor="corral", now=now, policy=policy)


def halt_over_hours(tx: Tx, run_id: RunId, *, now: float, policy: ServerPolicy) -> None:
    """Its project's GPU hours of the month would be passed."""
    run = tx.runs.lock(run_id)
    if run is None or run.state not in (RunState.RUNNING, RunState.YIELDING):
        return
    detail = f"the GPU hours of project {run.project} for this month are used up"
    _ask_to_stop(tx, run, RunEvent.HALT, Reason.MONEY_LIMIT, detail, actor="corral", now=now, policy=policy)


def ask_to_yield(tx: Tx, run_id: RunId, why: str, *, actor: str, now: float, policy: ServerPolicy) -> bool:
    """Ask a running run to write a checkpoint and make room; it is queued again, free of charge."""
    run = tx.runs.lock(run_id)
    if run is None or run.state is not RunState.RUNNING:
        return False
    _ask_to_stop(tx, run, RunEvent.PREEMPT, Reason.YIELDED, why, actor=actor, now=now, policy=policy)
    return True


def stop_stalled(tx: Tx, lease_id: LeaseId, *, now: float, policy: ServerPolicy) -> None:
    """No sign of life from the child for its stall limit: try again elsewhere, or give up."""
    lease = tx.leases.get(lease_id)
    run = tx.runs.lock(lease.run_id) if lease is not None else None
    # Read again under the run's lock: since the sweeper looked it may have ended, or shown life.
    lease = tx.leases.get(lease_id)
    if lease is None or run is None or run.state is not RunState.RUNNING or run.stall_limit_s is None:
        return
    if lease.state is not LeaseState.LIVE or lease.active_at + run.stall_limit_s > now:
        return
    again = run.budgets.allows(run.used, Reason.STALLED)
    detail = f"no output, metric or progress for {run.stall_limit_s:g} s"
    _ask_to_stop(
        tx,
        run,
        RunEvent.PREEMPT if again else RunEvent.HALT,
        Reason.STALLED,
        detail,
        actor="corral",
        now=now,
        policy=policy,
    )


def force_stop(tx: Tx, run_id: RunId, *, now: float, shares: Shares) -> None:
    """The worker was told to stop and its time for that is over: fence it and settle the run."""
    run = tx.runs.lock(run_id)
    if run is None or run.state not in STOPPING or run.stop_deadline is None or run.stop_deadline > now:
        return
    for lease in tx.leases.live_of_run(run_id):
        end_rank(tx, lease, RankEvent.LEASE_EXPIRED, reason=run.stop_reason or Reason.UNKNOWN)
        tx.leases.save(lease._replace(state=LeaseState.CLOSED, closed_at=now, outcome="stop_deadline"))
        tx.blobs.unpin(f"lease:{lease.id}")
        run = use_time(tx, run, lease, shares, known_s(lease), now=now)
    settle_stop(tx, run, RunEvent.STOP_DEADLINE, now=now, actor="corral")


def _ask_to_stop(
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
    deadline = now + policy.stop_s(run)
    return move(
        tx,
        run,
        event,
        at=now,
        actor=actor,
        data={"reason": reason, "detail": detail},
        stop_reason=reason,
        stop_deadline=deadline,
        detail=detail,
    )
