"""What a lease's time is counted against: its run's wall limit and cost, its project's share and hours."""

from __future__ import annotations

import json
from collections.abc import Sequence

from corral.core.hosts.prices import with_cost
from corral.core.queue.fair_share import Shares
from corral.domain.leases import MOST_RAN_S, Lease
from corral.domain.quotas import UsageHours, by_month
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx


def use_time(tx: Tx, run: Run, lease: Lease, shares: Shares, ran_s: float, *, now: float) -> Run:
    """Count the time of a lease that ends. Of several ranks the last one's counts against the wall limit."""
    run = pay(tx, run, lease, shares, ran_s, now=now)
    if run.world_size > 1 and any(other.id != lease.id for other in tx.leases.live_of_run(run.id)):
        return run
    return run._replace(ran_s=run.ran_s + ran_s)


def pay(tx: Tx, run: Run, lease: Lease, shares: Shares, ran_s: float, *, now: float) -> Run:
    """Count it against the project's share and its hours of the month, and the run's cost."""
    gpus = len(json.loads(lease.gpus))
    shares.closed(run.project, ran_s, gpus)
    for month, part_s in by_month(now, ran_s):
        tx.quotas.add_hours(UsageHours(run.project, month, part_s, part_s * gpus))
    return with_cost(run, lease, ran_s)


def pay_back(tx: Tx, run: Run, lease: Lease) -> Run:
    """It was counted when the lease ran out; the lease's real end will count the whole of it again."""
    ran_s, gpus = known_s(lease), len(json.loads(lease.gpus))
    if lease.closed_at is not None:
        for month, part_s in by_month(lease.closed_at, ran_s):
            tx.quotas.add_hours(UsageHours(run.project, month, -part_s, -part_s * gpus))
    return with_cost(run, lease, -ran_s)


def known_s(lease: Lease) -> float:
    """How long a lease that was taken away is known to have run.

    By its worker's own count, which no jump of the wall clock touches; without one, to its last beat.
    """
    told = json.loads(lease.sample).get("ran_s")
    if isinstance(told, int | float):
        return float(min(max(0.0, told), MOST_RAN_S))
    return max(0.0, (lease.beaten_at or lease.granted_at) - lease.granted_at)


def cost_so_far(run: Run, live: Sequence[Lease]) -> float | None:
    """With what its live leases have cost up to their last beats; None if a part of it is unknown."""
    for lease in live:
        ran_s = known_s(lease)
        run = with_cost(run, lease, ran_s)._replace(ran_s=run.ran_s + ran_s)
    return run.cost
