"""Only the newest epoch may write. Expiry, release and return of leases."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from corral.core.hosts import faults
from corral.core.hosts.prices import with_cost
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.runs.dependencies import move
from corral.core.runs.retry import retry_or_fail
from corral.core.runs.stop import settle_stop
from corral.domain.errors import Forbidden, LeaseLost, NotFound, found
from corral.domain.hosts.hosts import Host
from corral.domain.ids import LeaseId
from corral.domain.leases import Lease, LeaseKey, LeaseState
from corral.domain.quotas import UsageHours, by_month
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Rank, Run
from corral.domain.runs.states import LEASED, STOPPING, RankEvent, RankState, RunEvent, RunState
from corral.store.transaction import Tx

# Why the sweeper or a new boot ends a lease; what the worker itself reported is final.
_MAY_RETURN = frozenset({Reason.HOST_LOST, Reason.RELEASED})
# So long what a lease uploaded stays after the lease ran out.
_MAY_RETURN_S = 86400.0


def fence(tx: Tx, key: LeaseKey, *, now: float, policy: ServerPolicy) -> tuple[Lease, Run]:
    """The lease and its run, held against change, if the caller may write; LeaseLost otherwise.

    A lease that ran out is taken up again if nobody claimed the run since: its host keeps its work.
    """
    run, lease = held(tx, key)
    return check_held(tx, lease, run, key.epoch, now=now, policy=policy)


def held(tx: Tx, key: LeaseKey) -> tuple[Run, Lease]:
    """The lease and its run, so that nobody closes it while we look. A host sees only its own leases."""
    mine = tx.leases.hold_of_host(key.id, key.host_id)
    if mine is None:
        raise _not_yours(key.id)
    run, lease, revoked_at = mine
    if revoked_at is not None:
        # It was let in before it was revoked, and what it sent came after that.
        raise Forbidden(f"host {key.host_id} is revoked", hint="Stop the child, and enrol the host again.")
    return run, lease


def check_held(
    tx: Tx, lease: Lease, run: Run, epoch: int, *, now: float, policy: ServerPolicy
) -> tuple[Lease, Run]:
    if lease.epoch != epoch:
        raise LeaseLost(f"lease {lease.id} has epoch {lease.epoch}, not {epoch}")
    if lease.state is LeaseState.LIVE:
        return lease, run
    if lease.state is LeaseState.EXPIRED:
        return _reattach(tx, lease, run, now=now, policy=policy)
    raise LeaseLost(f"lease {lease.id} of run {run.id} is closed ({lease.outcome})")


def owned(tx: Tx, key: LeaseKey) -> Lease:
    """A host sees only its own leases."""
    lease = tx.leases.get(key.id)
    if lease is None or lease.host_id != key.host_id:
        raise _not_yours(key.id)
    return lease


def _not_yours(lease_id: LeaseId) -> NotFound:
    hint = "Stop the child; the lease was never this host's."
    return NotFound(f"this host has no lease {lease_id}", hint=hint)


def _reattach(tx: Tx, lease: Lease, run: Run, *, now: float, policy: ServerPolicy) -> tuple[Lease, Run]:
    rank = tx.attempts.rank(run.id, lease.attempt, lease.rank)
    may = (
        rank is not None
        and rank.state is RankState.ENDED
        and rank.lease_id == lease.id
        and rank.reason in _MAY_RETURN
        and run.attempt == lease.attempt
        and run.epoch == lease.epoch
        and run.state in (RunState.QUEUED, RunState.PLACING)
    )
    if not may or rank is None or rank.reason is None:
        raise LeaseLost(f"lease {lease.id} ran out and run {run.id} is {run.state} now")
    tx.attempts.save_rank(rank.stepped(RankEvent.REATTACH)._replace(reason=None))
    run = _unuse_time(tx, run, lease)
    if rank.reason is Reason.HOST_LOST:
        run = run._replace(lost_hosts=max(0, run.lost_hosts - 1))
        faults.returned(tx, lease.host_id)
    lease = lease._replace(
        state=LeaseState.LIVE, closed_at=None, beaten_at=now, expires_at=now + policy.lease_s
    )
    tx.leases.save(lease)
    tx.blobs.keep(f"lease:{lease.id}")
    # The run's reason is what was charged: a stop that the lease's end settled had one of its own.
    run = run.charged(run.reason or rank.reason, -1)._replace(reason=None, detail=None)
    actor, data = f"host:{lease.host_id}", {"lease": lease.id, "epoch": lease.epoch}
    return lease, move(tx, run, RunEvent.REATTACH, at=now, actor=actor, data=data)


def close_lease(
    tx: Tx, lease: Lease, *, outcome: str, now: float, digest: str | None = None, answer: str | None = None
) -> None:
    closed = lease._replace(state=LeaseState.CLOSED, closed_at=now)
    tx.leases.save(closed._replace(outcome=outcome, outcome_digest=digest, outcome_answer=answer))
    tx.blobs.unpin(f"lease:{lease.id}")


def use_time(tx: Tx, run: Run, lease: Lease, shares: Shares, ran_s: float, *, now: float) -> Run:
    """Count a lease's time against the run's wall limit, the project's share and its hours of the month."""
    gpus = len(json.loads(lease.gpus))
    shares.closed(run.project, ran_s, gpus)
    for month, part_s in by_month(now, ran_s):
        tx.quotas.add_hours(UsageHours(run.project, month, part_s, part_s * gpus))
    return with_cost(run, lease, ran_s)._replace(ran_s=run.ran_s + ran_s)


def _unuse_time(tx: Tx, run: Run, lease: Lease) -> Run:
    """It was counted when the lease ran out; the lease's real end will count the whole of it again."""
    ran_s, gpus = known_s(lease), len(json.loads(lease.gpus))
    if lease.closed_at is not None:
        for month, part_s in by_month(lease.closed_at, ran_s):
            tx.quotas.add_hours(UsageHours(run.project, month, -part_s, -part_s * gpus))
    return with_cost(run, lease, -ran_s)._replace(ran_s=max(0.0, run.ran_s - ran_s))


def known_s(lease: Lease) -> float:
    """How long a lease that was taken away is known to have run.

    By its worker's own count, which no jump of the wall clock touches; without one, to its last beat.
    """
    told = json.loads(lease.sample).get("ran_s")
    if isinstance(told, int | float):
        return max(0.0, float(told))
    return max(0.0, (lease.beaten_at or lease.granted_at) - lease.granted_at)


def cost_so_far(run: Run, live: Sequence[Lease]) -> float | None:
    """With what its live leases have cost up to their last beats; None if a part of it is unknown."""
    for lease in live:
        ran_s = known_s(lease)
        run = with_cost(run, lease, ran_s)._replace(ran_s=run.ran_s + ran_s)
    return run.cost


def end_rank(tx: Tx, lease: Lease, event: RankEvent, *, reason: Reason, exit_code: int | None = None) -> Rank:
    missing = f"run {lease.run_id} has no rank {lease.rank} in attempt {lease.attempt}"
    rank = found(tx.attempts.rank(lease.run_id, lease.attempt, lease.rank), missing)
    rank = rank.stepped(event)._replace(reason=reason, exit_code=exit_code)
    tx.attempts.save_rank(rank)
    return rank


def expire(tx: Tx, lease_id: LeaseId, *, now: float, policy: ServerPolicy, shares: Shares) -> None:
    """The sweeper: the lease's time ran out. One that was never beaten is given back free of charge."""
    run, lease = tx.leases.hold(lease_id) or (None, None)
    if run is None or lease is None or lease.state is not LeaseState.LIVE or lease.expires_at > now:
        return
    reason = Reason.RELEASED if lease.beaten_at is None else Reason.HOST_LOST
    why = "its worker never began it" if lease.beaten_at is None else "the host stopped renewing its lease"
    run = _take_away(tx, lease, run, reason, why, now=now, shares=shares)
    if reason is Reason.HOST_LOST:
        faults.lost(tx, lease.host_id, run, now=now, policy=policy)


def release_boot(
    tx: Tx, host: Host, boot_id: str, holding: Collection[str], *, now: float, shares: Shares
) -> tuple[LeaseId, ...]:
    """A new boot of the worker holds only what it says: its predecessor's other leases are given back."""
    released: list[LeaseId] = []
    for lease in tx.leases.live_of_host(host.id):
        if lease.boot_id == boot_id or lease.id in holding:
            continue
        run = tx.runs.lock(lease.run_id)
        # Read again under the run's lock: a late outcome of the old boot may have closed it.
        still = tx.leases.get(lease.id)
        if run is not None and still is not None and still.state is LeaseState.LIVE:
            _take_away(tx, still, run, Reason.RELEASED, "its worker was restarted", now=now, shares=shares)
            released.append(lease.id)
    return tuple(released)


def _take_away(
    tx: Tx, lease: Lease, run: Run, reason: Reason, why: str, *, now: float, shares: Shares
) -> Run:
    end_rank(tx, lease, RankEvent.LEASE_EXPIRED, reason=reason)
    tx.leases.save(lease._replace(state=LeaseState.EXPIRED, closed_at=now))
    # The host may come back, and names then what it uploaded before.
    tx.blobs.let_go(f"lease:{lease.id}", at=now + _MAY_RETURN_S)
    run = use_time(tx, run, lease, shares, known_s(lease), now=now)
    fence_gang(tx, run, lease, now=now)
    if run.state in STOPPING:
        return settle_stop(tx, run, RunEvent.LEASE_EXPIRED, now=now, actor="corral", data={"lease": lease.id})
    if run.state not in LEASED:
        return run
    if reason is Reason.HOST_LOST:
        hosts = faults.lost_hosts(tx, run)
        run = run._replace(lost_hosts=len(hosts))
        if len(hosts) >= faults.POISON_HOSTS:
            reason, why = Reason.POISON, f"{len(hosts)} different hosts were lost while they ran it"
    return retry_or_fail(tx, run, reason, why, now=now, actor="corral")


def fence_gang(tx: Tx, run: Run, ended: Lease, *, now: float) -> None:
    """In a fixed gang the first rank that ends closes the attempt and fences all the others."""
    if run.world_size == 1 or run.elastic:
        return
    for other in tx.leases.live_of_run(run.id):
        if other.id != ended.id:
            end_rank(tx, other, RankEvent.STOPPED, reason=Reason.RELEASED)
            close_lease(tx, other, outcome="fenced", now=now)
    tx.attempts.close(run.id, ended.attempt, now)
