"""The right of one worker to one rank of one attempt."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import HostId, LeaseId, RunId

# A worker that says more than these three hundred years is not believed.
MOST_RAN_S = 1e10


class LeaseState(StrEnum):
    LIVE = "live"
    # Its time ran out; until somebody else claims, its holder may still come back.
    EXPIRED = "expired"
    CLOSED = "closed"


class LeaseKey(NamedTuple):
    """What a worker shows with everything that it writes: its lease, the epoch, and which host it is."""

    id: LeaseId
    epoch: int
    host_id: HostId


class Lease(NamedTuple):
    """`outcome` is how it was closed; its digest and answer make a replay repeatable for ever."""

    id: LeaseId
    run_id: RunId
    project: str
    attempt: int
    rank: int
    epoch: int
    host_id: HostId
    boot_id: str
    request_id: str
    gpus: str
    state: LeaseState
    granted_at: float
    beaten_at: float | None
    expires_at: float
    active_at: float
    closed_at: float | None = None
    outcome: str | None = None
    outcome_digest: str | None = None
    outcome_answer: str | None = None
    progress: str = "{}"
    sample: str = "{}"
    event_seq: int = 0
    log_bytes: int = 0
    # How much of each GPU's memory it holds; None is the whole of them.
    gpu_bytes: int | None = None
    # What it costs, in dollars; None is unknown.
    price_per_hour: float | None = None

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.id, self.epoch, self.host_id)
