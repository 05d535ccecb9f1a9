"""What a worker says and hears. Every call names the lease and carries its epoch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic import JsonValue as Json

from corral.domain.capability import Capability, Gpu
from corral.domain.reasons import Reason
from corral.wire.base import (
    Answer,
    ArtifactIdText,
    DigestText,
    JsonMap,
    Name,
    PlainText,
    RequestId,
    Strict,
    known_only,
)
from corral.wire.spec import RunSpec
from corral.wire.tables import SystemName


def _plain_mode(mode: int) -> int:
    if mode not in (0o644, 0o755):
        raise ValueError("is neither 420 (a file) nor 493 (an executable file)")
    return mode


Detail = Annotated[PlainText, Field(max_length=20_000)]
# Bounded, so that sums stay finite and a calendar can show them, whatever a clock says.
Seconds = Annotated[float, Field(ge=0, le=1e10)]
Moment = Annotated[float, Field(ge=-1e11, le=1e11)]


class GpuReport(Strict):
    index: int = Field(ge=0, le=4096)
    name: str = Field(max_length=128)
    uuid: str | None = Field(None, max_length=128)
    memory_bytes: int | None = Field(None, ge=0, lt=2**62)
    compute_capability: str | None = Field(None, pattern=r"^\d{1,3}\.\d{1,3}$")
    driver: str | None = Field(None, max_length=64)


class CapabilityReport(Strict):
    """Totals of the host; null is unknown, never zero."""

    hostname: str = Field(max_length=255)
    os: str = Field(max_length=32)
    arch: str = Field(max_length=32)
    cores: int | None = Field(None, ge=0, le=1_000_000)
    ram_bytes: int | None = Field(None, ge=0, lt=2**62)
    disk_bytes: int | None = Field(None, ge=0, lt=2**62)
    gpus: list[GpuReport] | None = Field(None, max_length=1024)
    python: str | None = Field(None, max_length=32)
    labels: list[Name] = Field(default_factory=list, max_length=64)
    engine: dict[Name, Annotated[str, Field(max_length=64)] | None] | None = Field(
        None, max_length=32, description="Versions of what the training engine needs; null is not installed."
    )

    corral: str | None = Field(None, max_length=128, description="The worker's version and commit.")
    gpu_note: Annotated[PlainText, Field(max_length=2000)] | None = Field(
        None, description="What went wrong when the GPUs were asked for."
    )
    system: dict[SystemName, bool] = Field(
        default={}, max_length=1024, description="Programs and packages that were asked for."
    )

    def capability(self) -> Capability:
        gpus = None if self.gpus is None else tuple(Gpu(**gpu.model_dump()) for gpu in self.gpus)
        return Capability(**{**self.model_dump(exclude={"gpus"}), "gpus": gpus, "labels": tuple(self.labels)})


class ClaimRequest(Strict):
    """Ask for up to `max_leases`; wait up to `wait_s` for one. `holding` on the first call of a boot."""

    request_id: RequestId
    boot_id: RequestId
    slots: int = Field(ge=0, le=10_000)
    max_leases: int = Field(1, ge=0, le=1000)
    wait_s: float = Field(0, ge=0, le=60)
    capability: CapabilityReport | None = None
    holding: list[str] | None = Field(None, max_length=10_000)
    draining: bool = False


class Resume(Answer):
    """The newest complete checkpoint of an earlier attempt."""

    artifact_id: str
    step: int | None = None


class Lease(Answer):
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
    wall_left_s: float | None = None
    log_quota_bytes: int
    resume: Resume | None = None
    spec: Annotated[RunSpec, known_only(RunSpec)]


class ClaimAnswer(Answer):
    leases: list[Lease]
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


class SecretsAnswer(Answer):
    values: dict[str, str]


class LogRecord(Strict):
    at: Moment
    stream: Literal["stdout", "stderr", "corral"]
    text: str = Field(max_length=70_000)
    partial: bool = False
    call: str | None = Field(None, pattern=r"^c-[a-z0-9]{12}$")


class MetricRecord(Strict):
    at: Moment
    name: str = Field(min_length=1, max_length=128)
    value: float
    step: int | None = Field(None, ge=-(2**62), lt=2**62)


class EventBatch(Strict):
    """Numbered from 1 per lease: a batch that was seen is dropped, one that comes early is refused."""

    seq: int = Field(ge=1, lt=2**62)
    logs: list[LogRecord] = Field(default_factory=list, max_length=20_000)
    metrics: list[MetricRecord] = Field(default_factory=list, max_length=20_000)
    notes: list[Detail] = Field(default_factory=list, max_length=1000)
    progress: JsonMap | None = Field(None, max_length=64)


class EventAnswer(Answer):
    accepted: bool
    next_seq: int


class FileRecord(Strict):
    path: str = Field(min_length=1, max_length=4096)
    sha256: DigestText
    size: int = Field(ge=0, lt=2**62)
    mode: Annotated[int, AfterValidator(_plain_mode)] = 0o644


class ManifestRequest(Strict):
    """The files of one artifact. Its blobs must be there; the commit checks it."""

    kind: Literal["output", "checkpoint", "code", "input"]
    files: list[FileRecord] = Field(max_length=1_000_000)
    step: int | None = Field(None, ge=0, lt=2**62)
    metric: float | None = None
    meta: JsonMap = Field(default_factory=dict, max_length=256)


class ArtifactView(Answer):
    id: str
    project: str
    kind: str
    digest: str
    files: int
    bytes: int
    run_id: str | None = None
    attempt: int | None = None
    rank: int | None = None
    epoch: int | None = None
    host: str | None = None
    step: int | None = None
    metric: float | None = None
    pinned: bool = False
    created_at: float
    meta: dict[str, Json] = {}


class ArtifactPage(Answer):
    items: list[ArtifactView]
    next: str | None = None


class FilePage(Answer):
    items: list[Annotated[FileRecord, known_only(FileRecord)]]
    next: str | None = None


class BlobQuery(Strict):
    """Which of these does the project hold? Those it holds are pinned for the caller."""

    blobs: list[DigestText] = Field(max_length=10_000)


class BlobAnswer(Answer):
    """`missing` must be uploaded; `offsets` says where a broken upload of one may go on."""

    missing: list[str]
    offsets: dict[str, int] = {}


class BlobStored(Answer):
    sha256: str
    size: int
    existed: bool


class NearView(Answer):
    """A folder of the machine that the server and the caller share; none if they share none."""

    folder: str | None


class NearRequest(Strict):
    """A file that was put into that folder. With `size` it may still be written, under a lock."""

    name: str = Field(pattern=r"^[0-9a-f]{32}$")
    size: int | None = Field(default=None, ge=0)


class PlaceView(Answer):
    """Where on that machine a blob can be read."""

    path: str | None


class FinishRequest(Strict):
    """The child ended with 0 and its output is committed (or there is none)."""

    artifact_id: ArtifactIdText | None = None
    metrics: dict[str, float] = Field(default_factory=dict, max_length=1024)
    ran_s: Seconds = 0


class FailRequest(Strict):
    reason: Reason
    detail: Detail = ""
    exit_code: int | None = Field(None, ge=-(2**31), lt=2**32)
    signal: int | None = Field(None, ge=0, le=1024)
    ran_s: Seconds = 0


class StoppedRequest(Strict):
    """The child was stopped as asked, or the worker drains and gives the run back."""

    reason: Reason
    detail: Detail = ""
    exit_code: int | None = Field(None, ge=-(2**31), lt=2**32)
    signal: int | None = Field(None, ge=0, le=1024)
    ran_s: Seconds = 0


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
