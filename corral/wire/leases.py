"""What a worker says and hears. Every call names the lease and carries its epoch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from corral.domain.leases import MOST_RAN_S
from corral.domain.protocol import WORKER_NEWS
from corral.domain.runs.measures import MOST_METRICS
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import MemoryKind
from corral.wire.base import (
    Answer,
    ArtifactIdText,
    JsonMap,
    LeaseIdText,
    PlainText,
    RequestId,
    Strict,
    known_only,
)
from corral.wire.errors import ErrorBody
from corral.wire.hosts import CapabilityReport
from corral.wire.spec.run_file import RunSpec

# As long as workers let them be: lists of runs show the metrics of each.
MetricName = Annotated[str, Field(min_length=1, max_length=128)]
Detail = Annotated[PlainText, Field(max_length=20_000)]
# Bounded, so that sums stay finite and a calendar can show them, whatever a clock says.
Seconds = Annotated[float, Field(ge=0, le=MOST_RAN_S)]
Moment = Annotated[float, Field(ge=-1e11, le=1e11)]


class RamReport(Strict):
    """What a worker sees of its host's memory."""

    free_bytes: int = Field(
        ge=0,
        lt=2**62,
        description=(
            "Free now, beyond what its runs were promised and have not used yet. Page cache counts as free."
        ),
    )
    runs_bytes: int = Field(0, ge=0, lt=2**62, description="What its runs use.")


class ClaimRequest(Strict):
    """Ask for up to `max_leases`; wait up to `wait_s` for one. `holding` on the first call of a boot."""

    request_id: RequestId
    boot_id: RequestId
    slots: int = Field(ge=0, le=10_000)
    lent_slots: int = Field(0, ge=0, le=100_000, description="Of instances whose calls wait for others.")
    max_leases: int = Field(1, ge=0, le=1000)
    wait_s: float = Field(0, ge=0, le=60)
    capability: CapabilityReport | None = None
    holding: list[str] | None = Field(None, max_length=10_000)
    draining: bool = False
    ram: RamReport | None = Field(None, description="Null is unknown: then what it has in all counts.")

    @model_serializer(mode="wrap")
    def _as_older_servers_know_it(self, as_table: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """They refuse fields that they do not know, and most workers lend nothing."""
        table: dict[str, Any] = as_table(self)
        if not self.lent_slots:
            table.pop("lent_slots", None)
        if self.ram is None:
            table.pop("ram", None)
        return table

    def json_for(self, protocol: int) -> bytes:
        """Without what a server of that protocol would refuse the whole claim for."""
        if protocol >= WORKER_NEWS:
            return self.model_dump_json().encode()
        report = {"isolated", "isolation_note", "fault"}
        news: dict[str, Any] = {"lent_slots": True, "ram": True, "capability": report}
        return self.model_dump_json(exclude=news).encode()


class Resume(Answer):
    """The newest complete checkpoint of an earlier attempt."""

    artifact_id: str
    step: int | None = None


class RankPlaceView(Answer):
    """Where a rank of several is among the others."""

    local_rank: int = Field(description="Its number among those on the same host.")
    local_world_size: int = Field(description="How many are on the same host.")
    master_addr: str = Field(description="Where rank 0's host is reached from this one.")
    local_gpus: list[int] = Field(
        [], description="The GPUs of all ranks on the host, where each rank has one to itself."
    )


class LeaseView(Answer):
    id: str
    run_id: str
    project: str
    name: str
    attempt: int
    rank: int
    world_size: int
    epoch: int
    lease_s: float
    gpus: list[int] = []
    gpu_bytes: int | None = Field(None, description="How much of each GPU it holds; null is the whole.")
    memory_retries: int = Field(0, description="How often it was tried again since memory ran out.")
    wall_left_s: float | None = None
    log_quota_bytes: int
    resume: Resume | None = None
    place: RankPlaceView | None = Field(None, description="Of a run of several ranks.")
    spec: Annotated[RunSpec, known_only(RunSpec)]


class ClaimAnswer(Answer):
    leases: list[LeaseView]
    lease_s: float
    released: list[str] = []


class BeatRequest(Strict):
    """Progress is the child's own word; the sample is what the worker sees of the child.

    With `wait_s` the answer to a beat that may go on is held back that long, so that a stop is heard at once.
    """

    progress: JsonMap = Field(default_factory=dict, max_length=64)
    sample: dict[str, float] = Field(default_factory=dict, max_length=64)
    active_s_ago: Seconds | None = None
    wait_s: float = Field(0, ge=0, le=60)


class BeatAnswer(Answer):
    action: Literal["continue", "stop", "lost"]
    reason: str | None = None
    lease_s: float
    grace_s: float | None = None


class FinishRequest(Strict):
    """The child ended with 0 and its output is committed (or there is none)."""

    artifact_id: ArtifactIdText | None = None
    metrics: dict[MetricName, float] = Field(default_factory=dict, max_length=MOST_METRICS)
    ran_s: Seconds = 0


class _Unfinished(Strict):
    reason: Reason
    detail: Detail = ""
    exit_code: int | None = Field(None, ge=-(2**31), lt=2**32)
    signal: int | None = Field(None, ge=0, le=1024)
    ran_s: Seconds = 0


class MemoryReport(Strict):
    """Of which memory there was too little."""

    kind: MemoryKind
    shrinks: bool = Field(False, description="Whether the run can do with less: fewer tokens at once.")


class FailRequest(_Unfinished):
    """The child failed, or could not be started."""

    memory: MemoryReport | None = Field(None, description="For the reason `out_of_memory`.")

    @model_serializer(mode="wrap")
    def _as_older_servers_know_it(self, as_table: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """They refuse fields that they do not know."""
        table: dict[str, Any] = as_table(self)
        if self.memory is None:
            table.pop("memory", None)
        return table

    def known_to(self, protocol: int) -> FailRequest:
        """Without what a server of that protocol would refuse the whole report for."""
        return self if protocol >= WORKER_NEWS else self.model_copy(update={"memory": None})


class StoppedRequest(_Unfinished):
    """The child was stopped as asked, or the worker drains and gives the run back."""


class OutcomeAnswer(Answer):
    """What the outcome made of the run. A replay gets the same answer, for ever."""

    run_state: str
    rank_state: str


class ObjectAnswer(Answer):
    key: str
    etag: str


class ObjectList(Answer):
    keys: list[str]
    next: str | None = None


class KeptObjectView(Answer):
    """`modified` is the server's time in seconds since 1970."""

    key: str
    size: int
    etag: str
    modified: float


class KeptObjectList(Answer):
    """`now` is the server's time, by which `modified` goes."""

    objects: list[KeptObjectView]
    next: str | None = None
    now: float


class OutcomeReport(Strict):
    """The same as one call of `finish`, `fail` or `stopped`."""

    lease_id: LeaseIdText
    epoch: int = Field(ge=0, lt=2**62)
    finish: FinishRequest | None = None
    fail: FailRequest | None = None
    stopped: StoppedRequest | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> OutcomeReport:
        if sum(part is not None for part in (self.finish, self.fail, self.stopped)) != 1:
            raise ValueError("needs exactly one of finish, fail, stopped")
        return self


class OutcomesRequest(Strict):
    reports: list[OutcomeReport] = Field(min_length=1, max_length=1000)


class OutcomeResult(Answer):
    """What became of one report: the outcome's answer, or the error that its own call would have had."""

    lease_id: str
    outcome: OutcomeAnswer | None = None
    error: ErrorBody | None = None


class OutcomesAnswer(Answer):
    """In the order of the reports; each stands or falls alone."""

    results: list[OutcomeResult]
