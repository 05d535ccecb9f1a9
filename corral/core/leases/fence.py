"""Only the newest epoch may write. Expiry, release and return of leases."""

from __future__ import annotations

from collections.abc import Collection

from corral.core.hosts import faults
from corral.core.leases.gangs import (
    FENCED,
    RankEnd,
    brought_back,
    close_lease,
    end_rank,
    fence_gang_for_now,
    goes_on,
    let_go,
    live_again,
    rank_stopped,
    without_rank,
)
from corral.core.leases.usage import known_s, pay_back, use_time
from corral.core.placements.workers import killed_for_memory
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.runs.dependencies import move
from corral.core.runs.retry import retry_or_fail
from corral.core.runs.transitions import record
from corral.domain.errors import Forbidden, LeaseLost, NotFound
from corral.domain.hosts.hosts import Host
from corral.domain.ids import LeaseId
from corral.domain.leases import Lease, LeaseKey, LeaseState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Run
from corral.domain.runs.states import LEASED, STOPPING, RankEvent, RankState, RunEvent, RunState
from corral.store.transaction import Tx

# Why the sweeper or a new boot ends a lease; what the worker itself reported is final.
_MAY_RETURN = frozenset({Reason.HOST_LOST, Reason.RELEASED})


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
    if lease.state is LeaseState.EXPIRED and lease.outcome == FENCED:
        # From now on its worker knows: the rank for whose sake it was fenced comes too late.
        close_lease(tx, lease, outcome=FENCED, now=now)
    elif lease.state is LeaseState.EXPIRED:
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
    # Of an elastic run that goes on, only the rank had ended.
    alone = run.elastic and run.state is RunState.RUNNING
    may = (
        rank is not None
        and rank.state is RankState.ENDED
        and rank.lease_id == lease.id
        and rank.reason in _MAY_RETURN
        and run.attempt == lease.attempt
        and rank.epoch == lease.epoch
        and (alone or run.state in (RunState.QUEUED, RunState.PLACING))
    )
    if not may or rank is None or rank.reason is None:
        raise LeaseLost(f"lease {lease.id} ran out and run {run.id} is {run.state} now")
    if not alone:
        run = brought_back(tx, run, lease, now=now, policy=policy)
        run = run._replace(ran_s=max(0.0, run.ran_s - known_s(lease)))
    tx.attempts.save_rank(rank.stepped(RankEvent.REATTACH)._replace(reason=None))
    run = pay_back(tx, run, lease)
    if rank.reason is Reason.HOST_LOST:
        run = run._replace(lost_hosts=max(0, run.lost_hosts - 1))
        faults.returned(tx, lease.host_id)
    lease = live_again(tx, lease._replace(beaten_at=now), now=now, policy=policy)
    actor, data = f"host:{lease.host_id}", {"lease": lease.id, "epoch": lease.epoch}
    if alone:
        run = run.charged(rank.reason, -1)
        return lease, record(
            tx, run, "rank_reattached", at=now, actor=actor, data={**data, "rank": rank.rank}
        )
    # The run's reason is what was charged: a stop that the lease's end settled had one of its own.
    run = run.charged(run.reason or rank.reason, -1)._replace(reason=None, detail=None)
    return lease, move(tx, run, RunEvent.REATTACH, at=now, actor=actor, data=data)


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
    rank = end_rank(tx, lease, RankEvent.LEASE_EXPIRED, reason=reason)
    let_go(tx, lease, now=now)
    ran_s = known_s(lease)
    run = use_time(tx, run, lease, shares, ran_s, now=now)
    if run.state in STOPPING:
        return rank_stopped(tx, run, lease, RunEvent.LEASE_EXPIRED, now=now, actor="corral")
    if run.state not in LEASED:
        return run
    if (told := killed_for_memory(tx, run, lease)) is not None:
        reason, why = Reason.OUT_OF_MEMORY, told
    if reason is Reason.HOST_LOST:
        hosts = faults.lost_hosts(tx, run)
        run = run._replace(lost_hosts=len(hosts))
        # Of many hosts that work at once, some are lost whatever they run.
        if len(hosts) >= faults.POISON_HOSTS + run.world_size - 1:
            reason, why = Reason.POISON, f"{len(hosts)} different hosts were lost while they ran it"
    if goes_on(tx, run, lease, reason):
        return without_rank(tx, run, lease, rank, RankEnd(reason, why, "corral", now))[0]
    run = fence_gang_for_now(tx, run, lease, shares, ran_s=ran_s, now=now)
    return retry_or_fail(tx, run, reason, of_rank(run, lease, why), now=now, actor="corral")


def of_rank(run: Run, lease: Lease, text: str) -> str:
    return f"rank {lease.rank}: {text}" if run.world_size > 1 else text
