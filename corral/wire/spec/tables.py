"""The tables of a run file, each by itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from corral.domain.hosts.capability import CHEAPEST, Requirements
from corral.domain.paths import why_bad
from corral.domain.runs.retries import RetryLimits
from corral.durations import LEAST_S
from corral.wire.base import ArtifactIdText, Duration, Exact, Name, Size
from corral.wire.faults import Form

SystemName = Annotated[
    str,
    Field(max_length=128),
    Form(r"^[A-Za-z0-9][A-Za-z0-9+._-]*$", "a program's name (letters, digits, `+`, `.`, `_`, `-`)"),
]
EnvName = Annotated[
    str,
    Field(max_length=128),
    Form(r"^[A-Za-z_][A-Za-z0-9_]*$", "a variable's name (letters, digits, `_`; no digit first)"),
]
PythonVersion = Annotated[str, Form(r"^3\.\d{1,2}(\.\d{1,3})?$", 'a version of Python, as "3.12"')]
ComputeCapability = Annotated[str, Form(r"^\d{1,3}\.\d{1,3}$", 'a compute capability, as "8.0"')]


MOST_RANKS = 4096


class Replicas(Exact):
    """How many ranks: `replicas = 4`, or `{ min = 2, max = 8 }` for a run that can do with fewer."""

    min: int = Field(ge=1, le=MOST_RANKS, description="It starts when so many can start together.")
    max: int = Field(ge=1, le=MOST_RANKS, description="It grows to so many where there is room.")

    @model_validator(mode="after")
    def _in_order(self) -> Replicas:
        if self.min > self.max:
            raise ValueError(f"has min = {self.min}, which is more than max = {self.max}")
        return self


def _ranks(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_RANKS:
            raise ValueError(f"is {value}; a run has 1 to {MOST_RANKS} ranks")
        return {"min": value, "max": value}
    if isinstance(value, dict) and set(value) < {"min", "max"}:
        raise ValueError("needs both: { min = 2, max = 8 }; a number alone is a run that does not change")
    if not isinstance(value, dict | Replicas):
        raise ValueError("must be a number, or { min = 2, max = 8 }")
    return value


ReplicasText = Annotated[Replicas, BeforeValidator(_ranks, json_schema_input_type=int | Replicas)]


def _executors(value: object) -> object:
    return [CHEAPEST] if value == CHEAPEST else value


class PlacementTable(Exact):
    """Where workers may be brought up for the run. Without it, on hosts that have joined."""

    executors: Annotated[
        list[Name],
        BeforeValidator(_executors, json_schema_input_type=list[Name] | Literal["cheapest"]),
    ] = Field(
        default=[],
        max_length=16,
        description=(
            "Names of executors, tried in this order; `fleet` stands for the hosts that have joined, and"
            ' `cheapest` for all others by what the run would cost there: `"cheapest"` alone will do. An'
            " operator adds executors with `corral executors add`."
        ),
    )
    forecast_s: dict[Annotated[str, Field(max_length=64)], Annotated[float, Field(gt=0, le=1e9)]] = Field(
        default={},
        max_length=256,
        description=(
            "How long the run takes on which GPU, in seconds; filled in from the forecast of a training run"
            " that asks for the cheapest."
        ),
    )

    @model_validator(mode="after")
    def _each_once(self) -> PlacementTable:
        if len(set(self.executors)) < len(self.executors):
            raise ValueError("has an executor twice; name each once, in the order to try them")
        return self


class Resources(Exact):
    """What one rank needs. Sizes as `"24GiB"`; `gpu` names models, any of which will do."""

    gpus: int = Field(0, ge=0, le=1024, description="How many GPUs. The child sees only its own.")
    gpu: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default=[],
        max_length=32,
        description='Models, any of which will do; words of the name are enough: `["H100", "A100"]`.',
    )
    min_vram: Size | None = Field(None, ge=0, le=1 << 50, description="Memory of each GPU.")
    share_gpu: bool = Field(
        False,
        description=(
            "Hold only `min_vram` of each GPU, so that others may share it. The child reads how much in "
            "`CORRAL_GPU_MEMORY_BYTES`; keeping to it is its own affair."
        ),
    )
    prefer: Literal["cuda"] | None = Field(
        None,
        description=(
            "Would like one GPU and can do without. A host that has one (of `gpu`, `min_vram`, "
            "`min_compute_capability`) and is not away, drained or set aside has first refusal for "
            "`prefer_for`; then any host may take it."
        ),
    )
    prefer_for: Duration = Field(
        120, ge=0, le=30 * 86400, description="How long, from the moment that the run became ready."
    )
    min_ram: Size | None = Field(
        None, ge=0, le=1 << 50, description="Memory of the host that is free; the run has it to itself."
    )
    min_cores: int | None = Field(
        None, ge=0, le=100_000, description="Physical cores of the host; the run has them to itself."
    )
    min_disk: Size | None = Field(
        None,
        ge=0,
        le=1 << 60,
        description=(
            "Of the disk that the worker keeps its data on; the run has it to itself. "
            "Of a training run what its model takes is added, where that is known."
        ),
    )
    min_compute_capability: ComputeCapability | None = Field(None, description='Of each GPU, as `"8.0"`.')
    os: Literal["linux", "darwin", "windows"] | None = Field(None, description="The operating system.")
    arch: Literal["x86_64", "aarch64"] | None = Field(None, description="The processor.")
    labels: list[Name] = Field(
        default=[], max_length=64, description="Labels that the host must carry, all of them."
    )
    hosts: list[Name] = Field(default_factory=list, max_length=1024, description="Only these hosts, by name.")
    system: list[SystemName] = Field(
        default=[],
        max_length=64,
        description=(
            'Programs or Debian packages that the host must have, as `["ffmpeg"]`. Nothing is installed: '
            "a host looks for them when it is given the run, and gives it back if one is missing."
        ),
    )

    @model_validator(mode="after")
    def _a_gpu_need_asks_for_a_gpu(self) -> Resources:
        wants = self.gpus > 0 or self.prefer is not None
        if not wants and (self.gpu or self.min_vram or self.min_compute_capability or self.share_gpu):
            raise ValueError(
                'names what a GPU must have but asks for none; set gpus = 1 or more, or prefer = "cuda"'
            )
        if self.gpus and self.prefer is not None:
            raise ValueError(
                f"needs {self.gpus} GPUs, so prefer has no effect; set gpus = 0, or remove prefer"
            )
        if self.share_gpu and not self.min_vram:
            raise ValueError("shares a GPU without saying how much of it: set min_vram")
        return self

    def requirements(self) -> Requirements:
        return Requirements(
            gpus=self.gpus,
            gpu=tuple(sorted(self.gpu)),
            min_vram_bytes=self.min_vram,
            min_ram_bytes=self.min_ram,
            min_cores=self.min_cores,
            min_disk_bytes=self.min_disk,
            min_compute_capability=self.min_compute_capability,
            os=self.os,
            arch=self.arch,
            labels=tuple(sorted(self.labels)),
            hosts=tuple(sorted(self.hosts)),
            system=tuple(sorted(self.system)),
            prefer=self.prefer,
            prefer_for_s=self.prefer_for if self.prefer else 0.0,
            share_gpu=self.share_gpu,
        )


class RetryBudgets(Exact):
    """Retries by cause: lost machines, too little memory, the run's own errors."""

    infrastructure: int = Field(3, ge=0, le=1000, description="After a lost host, a preemption or a stall.")
    memory: int = Field(
        1,
        ge=0,
        le=100,
        description=(
            "After running out of memory, with more of it: a larger GPU or host, or fewer tokens at once. "
            "Not where neither is to be had."
        ),
    )
    code: int = Field(
        0,
        ge=0,
        le=1000,
        description="After an error of its own: a non-zero exit, bad data, refused output, a failed build.",
    )

    def budgets(self) -> RetryLimits:
        return RetryLimits(self.infrastructure, self.memory, self.code)


class Keep(Exact):
    """Which checkpoints stay: the newest ones and the best ones by their metric."""

    latest: int = Field(2, ge=1, le=10_000, description="This many of the newest.")
    best: int = Field(1, ge=0, le=10_000, description="This many of the best by their metric.")
    metric: Literal["min", "max"] = Field("min", description="Whether a small or a large metric is good.")


class InputFrom(Exact):
    """An input by where it comes from: a local path, an artifact's id, or a run's result."""

    path: str | None = Field(
        None,
        description=(
            "A file or folder on this machine. A file arrives inside a folder called NAME."
            " Beside `artifact` or `run`: the one file or folder of it that is meant."
        ),
    )
    artifact: ArtifactIdText | None = Field(None, description="An artifact's id.")
    run: str | None = Field(None, description="A run (id, prefix or `latest`) whose result is meant.")

    @model_validator(mode="after")
    def _exactly_one(self) -> InputFrom:
        if self.artifact is not None and self.run is not None:
            raise ValueError("has both artifact and run; give one of them")
        if self.path is None and self.artifact is None and self.run is None:
            raise ValueError("needs one of path, artifact, run")
        if self.part is not None and (why := why_bad(self.part)) is not None:
            raise ValueError(f"has a path that no artifact can hold: {why}")
        return self

    @property
    def local(self) -> str | None:
        return self.path if self.artifact is None and self.run is None else None

    @property
    def part(self) -> str | None:
        """Of the artifact; None is the whole."""
        return None if self.path is None or self.local is not None else self.path.rstrip("/")


Input = Annotated[str | InputFrom, Field(description="A path of a file or folder, or a table as below.")]


class After(Exact):
    """A run that must have ended before."""

    run: str = Field(
        min_length=1,
        max_length=64,
        description="Its id, or a unique prefix of it, or `latest`; or the name of runs submitted together.",
    )
    input: Name | None = Field(
        None, description="Its result becomes the input of this name: `CORRAL_INPUT_DIR/NAME`."
    )
    on_failure: Literal["fail", "cancel", "run"] = Field(
        "fail",
        description="What becomes of this run if that one does not succeed: it fails, is cancelled, or runs.",
    )

    @model_validator(mode="after")
    def _an_input_needs_success(self) -> After:
        if self.input is not None and self.on_failure == "run":
            raise ValueError("takes the result of a run and would run without it; use fail or cancel")
        return self


def _as_after(value: object) -> object:
    return {"run": value} if isinstance(value, str) else value


Parents = Annotated[
    list[Annotated[After, BeforeValidator(_as_after, json_schema_input_type=str | After)]],
    Field(max_length=1000),
]


class ScheduleTable(Exact):
    """When runs are made, and what becomes of times that were missed or come too soon."""

    cron: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description='Minute, hour, day of the month, month, day of the week: `"0 3 * * *"`.',
    )
    every: Duration | None = Field(
        None, ge=LEAST_S, le=366 * 86400, description='Instead of `cron`: `"6h"`; at least 10 seconds.'
    )
    timezone: str = Field(
        "UTC", min_length=1, max_length=64, description="What `cron` is read in, as `Europe/Berlin`."
    )
    missed: Literal["skip", "once"] = Field(
        "once", description="Times that passed while the server was away: none of them, or one run for all."
    )
    overlap: Literal["skip", "queue", "cancel"] = Field(
        "skip",
        description=(
            "A time at which runs of the time before have not ended: left out, queued beside them, "
            "or they are cancelled."
        ),
    )

    @model_validator(mode="after")
    def _one_of_the_two(self) -> ScheduleTable:
        if (self.cron is None) == (self.every is None):
            raise ValueError('needs exactly one of cron and every: cron = "0 3 * * *", or every = "6h"')
        return self


class EnvironmentFile(Exact):
    """Python version and requirements, resolved once at submit; or `host = true` for the host's own."""

    host: bool = Field(False, description="Take whatever Python the host has.")
    python: PythonVersion | None = Field(
        None,
        description="The version to build with; that of `corral` itself when left out.",
    )
    requirements: list[str] | str = Field(
        default=[], description="As pip takes them: a list, or the path of a requirements file."
    )
    find_links: str | None = Field(None, description="A folder of wheels beside the index.")
    wheels: str | None = Field(
        None, description="A folder of wheels instead of any index: nothing is fetched from elsewhere."
    )

    @model_validator(mode="after")
    def _host_or_built(self) -> EnvironmentFile:
        if self.host and (self.python or self.requirements):
            raise ValueError("host = true takes the host's Python: remove python and requirements")
        if self.find_links and self.wheels:
            raise ValueError("has both find_links (beside the index) and wheels (instead of it); keep one")
        return self
