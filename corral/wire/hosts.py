"""Hosts: how they join, what they report, what is declared of them, and how they are listed."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema, field_validator
from pydantic import JsonValue as Json

from corral.domain.hosts.capability import Capability, Gpu
from corral.domain.hosts.policy import SUBJECTS, HostPolicy
from corral.domain.hosts.samples import MOST_GPUS
from corral.wire.base import Answer, AnswerPage, Exact, Name, PlainText, RequestId, Size, Strict, known_only
from corral.wire.spec.tables import ComputeCapability, SystemName

_MAX_PEM = 16_384
Ratio = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0, lt=2**62)]


class CaAnswer(Answer):
    """`ca` is to be checked against a pin that came another way before it is trusted."""

    ca: str | None = None


class RotateCredentialRequest(Strict):
    certificate_request: str | None = Field(
        None, max_length=_MAX_PEM, description="A PKCS #10 request, as PEM."
    )


class EnrollRequest(RotateCredentialRequest):
    """`name` is what the host insists on; `hostname` what it is called where neither it nor the token does.

    The same request id again, with the same token, gets the same host and a fresh credential.
    """

    request_id: RequestId
    name: Name | None = None
    hostname: Name


class HostCredential(Answer):
    """The only time that the token is shown. The certificate, if any, is for the key of the request."""

    token: str
    expires_in_s: float
    certificate: str | None = None


class EnrollAnswer(HostCredential):
    host_id: str
    name: str
    labels: list[str] = []


class GpuReport(Strict):
    index: int = Field(ge=0, le=4096)
    name: str = Field(max_length=128)
    uuid: str | None = Field(None, max_length=128)
    memory_bytes: int | None = Field(None, ge=0, lt=2**62)
    compute_capability: ComputeCapability | None = None
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
    isolated: bool | None = Field(
        None, description="Whether each run sees only its own of the host's files; false: they share a user."
    )
    isolation_note: Annotated[PlainText, Field(max_length=2000)] | None = Field(
        None, description="Why its runs are not isolated, or what more than usual isolated ones may write to."
    )
    fault: Annotated[PlainText, Field(max_length=2000)] | None = Field(
        None, description="Why it can run nothing at the moment, as its worker found."
    )
    system: dict[SystemName, bool] = Field(
        default={}, max_length=1024, description="Programs and packages that were asked for."
    )

    address: str | None = Field(
        None, max_length=255, pattern=r"^[0-9A-Za-z.:%_-]+$", description="Where other hosts reach its ranks."
    )

    def capability(self) -> Capability:
        gpus = None if self.gpus is None else tuple(Gpu(**gpu.model_dump()) for gpu in self.gpus)
        return Capability(**{**self.model_dump(exclude={"gpus"}), "gpus": gpus, "labels": tuple(self.labels)})


class GpuSampleReport(Strict):
    """How one GPU was; null is unknown, never zero."""

    index: int = Field(ge=0, le=4096)
    utilisation: Ratio | None = Field(None, description="The share of the time in which it was at work.")
    memory_used_bytes: Bytes | None = None
    memory_bytes: Bytes | None = None
    temperature_c: float | None = Field(None, ge=-100, le=1000, description="Degrees Celsius.")
    power_w: float | None = Field(None, ge=0, le=100_000, description="Watts.")


class HostSampleReport(Strict):
    """How busy the host was, on average since its last report."""

    cpu: Ratio | None = Field(None, description="The share of all its processors that was busy.")
    ram_used_bytes: Bytes | None = None
    ram_bytes: Bytes | None = None
    gpus: list[GpuSampleReport] = Field(default=[], max_length=MOST_GPUS)

    @field_validator("gpus")
    @classmethod
    def _each_once(cls, gpus: list[GpuSampleReport]) -> list[GpuSampleReport]:
        if len({gpu.index for gpu in gpus}) != len(gpus):
            raise ValueError("names a GPU twice")
        return gpus


class GpuSampleView(Answer):
    index: int
    name: str | None = None
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class HostSampleView(Answer):
    """The mean of about a minute, that began at `at`. What is not known is null."""

    at: float
    cpu: float | None = None
    ram_used_bytes: int | None = None
    ram_bytes: int | None = None
    gpus: list[GpuSampleView] = []


class HostSamplePage(AnswerPage[HostSampleView]): ...


class HostView(Answer):
    id: str
    name: str
    slots: int
    busy: int
    draining: bool
    alive: bool
    run_id: str | None = Field(None, description="The one run that an executor brought it up for.")
    last_seen_at: float | None = None
    revoked_at: float | None = None
    credential_expires_at: float | None = Field(None, description="None if it never does, or there is none.")
    capability: Annotated[CapabilityReport | None, known_only(CapabilityReport)] = None
    declared: dict[str, Json] | None = Field(None, description="Limits and policy from a manifest.")
    declared_by: str | None = None
    effective: Annotated[CapabilityReport | None, known_only(CapabilityReport)] = Field(
        None, description="What counts: the more restrictive of what it reports and what is declared."
    )
    effective_slots: int | None = None
    ram_free_bytes: int | None = Field(
        None, description="RAM that is free now beyond what its runs were promised, as its worker last said."
    )
    strikes: int = Field(0, description="Failures in a row that look like its own.")
    set_aside_until: float | None = None
    set_aside_why: str | None = None
    sample: HostSampleView | None = Field(None, description="How busy it was when it last said so.")


class HostPage(AnswerPage[HostView]): ...


def _pattern(text: str) -> str:
    subject, colon, glob = text.partition(":")
    if colon and subject not in SUBJECTS:
        raise ValueError(f"begins with `{subject}:`; a pattern is about {', '.join(SUBJECTS)}: `kind:train`")
    if not (glob if colon else subject):
        raise ValueError("names nothing; write for example `kind:train`, `project:lab` or `eval-*`")
    return text


def _count_or_indexes(value: object) -> int | list[int]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 4096 for item in listed):
        raise ValueError("is neither how many GPUs nor a list of their indexes: `2`, `[0, 1]`")
    if len(set(listed)) != len(listed):
        raise ValueError("names a GPU twice")
    return value  # type: ignore[return-value]


Pattern = Annotated[str, Field(max_length=256), AfterValidator(_pattern)]
Index = {"type": "integer", "minimum": 0, "maximum": 4096}
# One validator in place of a union, whose complaints would name its members.
Gpus = Annotated[
    int | list[int],
    PlainValidator(_count_or_indexes),
    WithJsonSchema({"anyOf": [Index, {"type": "array", "items": Index}]}),
]


class HostTable(Exact):
    """Limits and policy of one host; what is left out is not limited. The more restrictive wins."""

    slots: int | None = Field(None, ge=0, le=10_000, description="How many runs it takes at once, at most.")
    cores: int | None = Field(None, ge=0, le=100_000, description="Physical cores, at most.")
    ram: Size | None = Field(None, ge=0, le=1 << 50, description="Memory, at most.")
    disk: Size | None = Field(None, ge=0, le=1 << 60, description="Disk, at most.")
    gpus: Gpus | None = Field(None, description="How many of its GPUs, or which by their indexes: `[0, 2]`.")
    vram: Size | None = Field(None, ge=0, le=1 << 50, description="Memory of each GPU, at most.")
    slots_per_gpu: int | None = Field(
        None, ge=1, le=1000, description="How many runs may share one GPU, at most (`resources.share_gpu`)."
    )
    labels: list[Name] = Field(default=[], max_length=64, description="Added to those that it reports.")
    allow: list[Pattern] = Field(
        default=[],
        max_length=256,
        description=(
            "Only this work, any one will do: `kind:train`, `recipe:grpo`, `model:Qwen*`, `project:lab`, "
            "`name:eval-*`. Without a word in front it is the run's name. `*` and `?` stand for anything."
        ),
    )
    deny: list[Pattern] = Field(
        default=[], max_length=256, description="Not this work, written likewise; wins over `allow`."
    )
    projects: list[Name] | None = Field(None, max_length=256, description="Only runs of these projects.")
    secrets: list[Name] | None = Field(
        None,
        max_length=256,
        description="Only secrets of these projects: another's run that needs some is refused. `[]`: none.",
    )
    price_per_hour: float | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="What the whole host costs, in dollars; a run costs its share of the GPUs, or a slot.",
    )

    def declared(self) -> HostPolicy:
        return HostPolicy(
            slots=self.slots,
            cores=self.cores,
            ram_bytes=self.ram,
            disk_bytes=self.disk,
            gpus=tuple(sorted(self.gpus)) if isinstance(self.gpus, list) else self.gpus,
            vram_bytes=self.vram,
            slots_per_gpu=self.slots_per_gpu,
            labels=tuple(sorted(set(self.labels))),
            allow=tuple(self.allow),
            deny=tuple(self.deny),
            projects=None if self.projects is None else tuple(sorted(set(self.projects))),
            secrets=None if self.secrets is None else tuple(sorted(set(self.secrets))),
            price_per_hour=self.price_per_hour,
        )
