"""Stopping runs that reached a limit: of wall time, of GPU hours, of silence, or of the time to stop."""

from __future__ import annotations

from corral.core.leases.gangs import close_lease, end_rank
from corral.core.leases.usage import known_s, use_time
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.runs.stop import ask_to_stop, settle_stop
from corral.domain.ids import LeaseId, RunId
from corral.domain.leases import LeaseState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import STOPPING, RankEvent, RunEvent, RunState
from corral.store.transaction import Tx


def halt_over_wall(tx: Tx, run_id: RunId, *, now: float, since: float, policy: ServerPolicy) -> None:
    """Of the present lease only what lies after `since` counts. Looked at again: it may be another lease."""
    run = tx.runs.lock(run_id)
    if run is None or run.state not in (RunState.RUNNING, RunState.YIELDING) or run.wall_limit_s is None:
        return
    begun = min((max(lease.granted_at, since) for lease in tx.leases.live_of_run(run_id)), default=now)
    if run.ran_s + now - begun < run.wall_limit_s:
        return
    detail = f"the wall limit of {run.wall_limit_s:g} s is used up"
    ask_to_stop(tx, run, RunEvent.HALT, Reason.WALL_LIMIT, detail, actor="corral", now=now, policy=policy)


def halt_over_hours(tx: Tx, run_id: RunId, *, now: float, policy: ServerPolicy) -> None:
    """Its project's GPU hours of the month would be passed."""
    run = tx.runs.lock(run_id)
    if run is None or run.state not in (RunState.RUNNING, RunState.YIELDING):
        return
    detail = f"the GPU hours of project {run.project} for this month are used up"
    ask_to_stop(tx, run, RunEvent.HALT, Reason.MONEY_LIMIT, detail, actor="corral", now=now, policy=policy)


def stop_stalled(tx: Tx, lease_id: LeaseId, *, now: float, policy: ServerPolicy) -> None:
    """No sign of life from the child for its stall limit: try again elsewhere, or give up."""
    # Since the sweeper looked it may have ended, or shown life.
    run, lease = tx.leases.hold(lease_id) or (None, None)
    if lease is None or run is None or run.state is not RunState.RUNNING or run.stall_limit_s is None:
        return
    if lease.state is not LeaseState.LIVE or lease.active_at + run.stall_limit_s > now:
        return
    event = RunEvent.PREEMPT if run.budgets.allows(run.used, Reason.STALLED) else RunEvent.HALT
    detail = f"no output, metric or progress for {run.stall_limit_s:g} s"
    ask_to_stop(tx, run, event, Reason.STALLED, detail, actor="corral", now=now, policy=policy)


def force_stop(tx: Tx, run_id: RunId, *, now: float, shares: Shares) -> None:
    """The worker was told to stop and its time for that is over: fence it and settle the run."""
    run = tx.runs.lock(run_id)
    if run is None or run.state not in STOPPING or run.stop_deadline is None or run.stop_deadline > now:
        return
    for lease in tx.leases.live_of_run(run_id):
        end_rank(tx, lease, RankEvent.LEASE_EXPIRED, reason=run.stop_reason or Reason.UNKNOWN)
        close_lease(tx, lease, outcome="stop_deadline", now=now)
        run = use_time(tx, run, lease, shares, known_s(lease), now=now)
    settle_stop(tx, run, RunEvent.STOP_DEADLINE, now=now, actor="corral")
