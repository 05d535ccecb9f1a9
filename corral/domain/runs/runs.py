"""Runs, their attempts and ranks, as the store keeps them.

Records are named tuples: immutable, typed, and cheap enough to make from every row of a hot query.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import ArtifactId, Digest, GroupId, HostId, LeaseId, RunId, new_run_id
from corral.domain.runs.holds import HoldKind, hold_kind
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import RetryLimits
from corral.domain.runs.states import FINAL, RankEvent, RankState, RunState, step_rank

# The kind of a run that is an instance of an endpoint; nobody submits it.
INSTANCE = "service"


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
    preemptible: bool = False
    schedule_id: str | None = None
    # Of what a manifest declared: the digest of what is not part of its identity.
    policy: str | None = None
    # What changes in a run's life; the defaults are how it begins.
    state: RunState = RunState.QUEUED
    hold_reason: str | None = None
    not_before: float | None = None
    ready_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    reason: Reason | None = None
    detail: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    attempt: int = 0
    epoch: int = 0
    used_infrastructure: int = 0
    used_memory: int = 0
    used_code: int = 0
    ran_s: float = 0.0
    stop_deadline: float | None = None
    stop_reason: Reason | None = None
    last_host: HostId | None = None
    artifact_id: ArtifactId | None = None
    metrics: str = "{}"
    event_n: int = 0
    # How many hosts were lost while they ran it.
    lost_hosts: int = 0
    # What its leases that have ended cost, in dollars. None is unknown, or nothing has run yet.
    cost: float | None = None
    # When its last event was written; None of a run from before this was kept.
    updated_at: float | None = None

    def born_again(self, *, submitted_by: str, now: float) -> Run:
        """The same run as a new one of the next generation."""
        return self._replace(
            **_BEGINNING,
            id=new_run_id(),
            generation=self.generation + 1,
            submitted_by=submitted_by,
            created_at=now,
        )._replace(ready_at=now, event_n=1)

    def with_policy_of(self, other: Run) -> Run:
        """With the other's name and the limits that are no part of a run's identity."""
        return self._replace(**{name: getattr(other, name) for name in _POLICY})

    @property
    def hold(self) -> HoldKind | None:
        """Why it is held; a run that runs may be marked as removed from its manifest."""
        return hold_kind(self.hold_reason)

    def is_held(self, kind: HoldKind) -> bool:
        return self.state is RunState.HELD and self.hold is kind

    @property
    def has_place(self) -> bool:
        """Whether it counts against `max_running` of its group. A retry keeps its place."""
        if self.state is RunState.HELD:
            return self.hold is HoldKind.BACKOFF
        return self.state not in FINAL

    @property
    def budgets(self) -> RetryLimits:
        return RetryLimits(self.retry_infrastructure, self.retry_memory, self.retry_code)

    @property
    def used(self) -> RetryLimits:
        return RetryLimits(self.used_infrastructure, self.used_memory, self.used_code)

    def charged(self, reason: Reason, amount: int = 1) -> Run:
        used = self.used.charged(reason, amount)
        return self._replace(
            used_infrastructure=used.infrastructure, used_memory=used.memory, used_code=used.code
        )


_POLICY = (
    *("name", "priority", "labels", "retry_infrastructure", "retry_memory", "retry_code"),
    *("wall_limit_s", "stall_limit_s", "grace_s", "preemptible"),
)
# A run's next generation starts with these.
_BEGINNING = {
    name: value
    for name, value in Run._field_defaults.items()
    if Run._fields.index(name) >= Run._fields.index("state")
}


class Attempt(NamedTuple):
    run_id: RunId
    number: int
    opened_at: float
    closed_at: float | None


class Rank(NamedTuple):
    run_id: RunId
    attempt: int
    rank: int
    state: RankState = RankState.WAITING
    epoch: int = 0
    lease_id: LeaseId | None = None
    reason: Reason | None = None
    exit_code: int | None = None
    # How often it was started before.
    restarts: int = 0

    def stepped(self, event: RankEvent) -> Rank:
        return self._replace(state=step_rank(self.state, event))


class Group(NamedTuple):
    id: GroupId
    project: str
    name: str
    created_at: float
    # How many of its runs may be queued or running at once.
    max_running: int | None = None


class OnFailure(StrEnum):
    """What becomes of a run whose parent did not succeed."""

    FAIL = "fail"
    CANCEL = "cancel"
    RUN = "run"


class Parent(NamedTuple):
    """A run waits for another; `input` names the input that the parent's artifact becomes."""

    run_id: RunId
    parent_id: RunId
    input: str | None
    on_failure: OnFailure


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


class EndedRun(NamedTuple):
    """A run of a group that failed or was cancelled."""

    id: RunId
    state: str
    reason: str | None
    detail: str | None


class MeasuredRun(NamedTuple):
    """A run of a group with the last values of its metrics, as JSON."""

    id: RunId
    created_at: float
    metrics: str


class GroupRun(NamedTuple):
    """A run of a group: what it was given (`params` and `train` of its spec, as JSON), what it measured."""

    id: RunId
    created_at: float
    name: str
    state: str
    seed: int | None
    identity: Digest
    generation: int
    metrics: str
    params: str | None
    train: str | None


class GroupEnd(NamedTuple):
    state: str
    reason: str | None
    detail: str | None
    runs: int
    example: RunId


@dataclass(frozen=True)
class RunFilter:
    project: str | None = None
    states: tuple[str, ...] = ()
    group: str | None = None
    name: str | None = None
    label: tuple[str, str] | None = None
    schedule: str | None = None
    # Who submitted it. Then instances of endpoints are left out: nobody submits them.
    submitted_by: str | None = None
    ended_before: float | None = None
    # Only runs of this kind, or of any but that.
    kind: str | None = None
    other_kind: str | None = None
