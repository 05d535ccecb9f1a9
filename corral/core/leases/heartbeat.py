"""Renewing a lease, and hearing what to do."""

from __future__ import annotations

from typing import NamedTuple

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.domain.errors import LeaseLost
from corral.domain.leases import LeaseKey
from corral.domain.runs.states import STOPPING
from corral.store.transaction import Tx


class Beat(NamedTuple):
    action: str
    reason: str | None
    grace_s: float | None


def beat(
    tx: Tx,
    key: LeaseKey,
    *,
    progress: str | None,
    sample: str,
    active_s_ago: float | None,
    now: float,
    policy: ServerPolicy,
) -> Beat:
    """Give the lease its full time again; say continue, stop, or lost."""
    try:
        lease, run = fence(tx, key, now=now, policy=policy)
    except LeaseLost as error:
        return Beat("lost", error.message, None)
    active_at = lease.active_at if active_s_ago is None else now - active_s_ago
    tx.leases.save(
        lease._replace(
            beaten_at=now,
            expires_at=now + policy.lease_s,
            active_at=active_at,
            progress=lease.progress if progress is None else progress,
            sample=sample,
        )
    )
    if run.state in STOPPING:
        return Beat("stop", run.stop_reason or str(run.state), run.grace_s)
    return Beat("continue", None, None)
