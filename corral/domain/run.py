"""Runs, their attempts and ranks, as the store keeps them.

Records are named tuples: immutable, typed, and cheap enough to make from every row of a hot query.
"""

from __future__ import annotations

from typing import NamedTuple

from corral.domain.ids import ArtifactId, Digest, GroupId, HostId, LeaseId, RunId
from corral.domain.reasons import Reason, Retries
from corral.domain.states import RankEvent, RankState, RunEvent, RunState, step_rank, step_run


class Run(NamedTuple):
    """Times are Unix seconds. `epoch` is the newest ever granted; `event_n` the number of its last event."""

    id: RunId
    project: str
    name: str
    kind: str
    group_id: GroupId | None
    seed: int | None
    identity: Digest
    manifest: str | None
    generation: int
    shape: Digest
    priority: int
    labels: str
    submitted_by: str
    created_at: float
    world_size: int
    min_ranks: int
    elastic: bool
    retry_infrastructure: int
    retry_memory: int
    retry_code: int
    wall_limit_s: float | None
    stall_limit_s: float | None
    grace_s: float
    state: RunState
    hold_reason: str | None
    not_before: float | None
    ready_at: float
    started_at: float | None
    ended_at: float | None
    reason: Reason | None
    detail: str | None
    exit_code: int | None
    signal: int | None
    attempt: int
    epoch: int
    used_infrastructure: int
    used_memory: int
    used_code: int
    ran_s: float
    stop_deadline: float | None
    stop_reason: Reason | None
    last_host: HostId | None
    artifact_id: ArtifactId | None
    metrics: str
    event_n: int

    def stepped(self, event: RunEvent) -> Run:
        return self._replace(state=step_run(self.state, event))

    @property
    def budgets(self) -> Retries:
        return Retries(self.retry_infrastructure, self.retry_memory, self.retry_code)

    @property
    def used(self) -> Retries:
        return Retries(self.used_infrastructure, self.used_memory, self.used_code)

    def charged(self, reason: Reason, amount: int = 1) -> Run:
        used = self.used.charged(reason, amount)
        return self._replace(
            used_infrastructure=used.infrastructure, used_memory=used.memory, used_code=used.code
        )


class Attempt(NamedTuple):
    run_id: RunId
    number: int
    opened_at: float
    closed_at: float | None


class Rank(NamedTuple):
    run_id: RunId
    attempt: int
    rank: int
    state: RankState
    epoch: int
    lease_id: LeaseId | None
    reason: Reason | None
    exit_code: int | None

    def stepped(self, event: RankEvent) -> Rank:
        return self._replace(state=step_rank(self.state, event))


class Group(NamedTuple):
    id: GroupId
    project: str
    name: str
    created_at: float


class Submission(NamedTuple):
    """Makes a submit repeatable: the same principal and request id get the same runs."""

    principal: str
    request_id: str
    digest: Digest
    group_id: GroupId | None
    run_ids: str
    created_at: float


class Event(NamedTuple):
    """Numbered per run; `seq` orders them across runs within one server's store."""

    run_id: RunId
    n: int
    at: float
    type: str
    actor: str
    data: str
