"""The run: the file that a user writes, and the resolved spec that the server keeps."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from corral.domain.capability import Requirements
from corral.domain.ids import is_name
from corral.domain.reasons import Retries
from corral.wire.base import ArtifactIdText, DigestText, Duration, Exact, Name, Size

Scalar = bool | int | float | str
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Text = Annotated[str, Field(max_length=32_768)]
_HOLE = re.compile(r"\{(params\.[A-Za-z0-9_-]+|seed|run_id)\}")


class Resources(Exact):
    """What one rank needs. Sizes as `"24GiB"`; `gpu` names models, any of which will do."""

    gpus: int = Field(0, ge=0, le=1024, description="How many GPUs. The child sees only its own.")
    gpu: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default=[],
        max_length=32,
        description='Models, any of which will do; part of the name is enough: `["H100", "A100"]`.',
    )
    min_vram: Size | None = Field(None, ge=0, le=1 << 50, description="Memory of each GPU.")
    min_ram: Size | None = Field(None, ge=0, le=1 << 50, description="The host's memory.")
    min_cores: int | None = Field(None, ge=0, le=100_000, description="The host's physical cores.")
    min_disk: Size | None = Field(
        None, ge=0, le=1 << 60, description="The disk that the worker keeps its data on."
    )
    min_compute_capability: str | None = Field(
        None, pattern=r"^\d{1,3}\.\d{1,3}$", description='Of each GPU, as `"8.0"`.'
    )
    os: Literal["linux", "darwin", "windows"] | None = Field(None, description="The operating system.")
    arch: Literal["x86_64", "aarch64"] | None = Field(None, description="The processor.")
    labels: list[Name] = Field(
        default=[], max_length=64, description="Labels that the host must carry, all of them."
    )
    hosts: list[Name] = Field(default_factory=list, max_length=1024, description="Only these hosts, by name.")

    @model_validator(mode="after")
    def _a_gpu_need_asks_for_a_gpu(self) -> Resources:
        if self.gpus == 0 and (self.gpu or self.min_vram or self.min_compute_capability):
            raise ValueError("names what a GPU must have but asks for none; set gpus = 1 or more")
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
        )


class RetryBudgets(Exact):
    """Retries by cause: lost machines, too little memory, the run's own errors."""

    infrastructure: int = Field(3, ge=0, le=1000, description="After a lost host, a preemption or a stall.")
    memory: int = Field(0, ge=0, le=100, description="After running out of memory.")
    code: int = Field(
        0,
        ge=0,
        le=1000,
        description="After an error of its own: a non-zero exit, bad data, refused output, a failed build.",
    )

    def budgets(self) -> Retries:
        return Retries(self.infrastructure, self.memory, self.code)


class Keep(Exact):
    """Which checkpoints stay: the newest ones and the best ones by their metric."""

    latest: int = Field(2, ge=1, le=10_000, description="This many of the newest.")
    best: int = Field(1, ge=0, le=10_000, description="This many of the best by their metric.")
    metric: Literal["min", "max"] = Field("min", description="Whether a small or a large metric is good.")


class InputFrom(Exact):
    """An input by where it comes from: a local path, an artifact's id, or a run's result."""

    path: str | None = Field(
        None,
        description="A file or folder on this machine. A file arrives inside a folder called NAME.",
    )
    artifact: ArtifactIdText | None = Field(None, description="An artifact's id.")
    run: str | None = Field(None, description="A run (id, prefix or `latest`) whose result is meant.")

    @model_validator(mode="after")
    def _exactly_one(self) -> InputFrom:
        if sum(v is not None for v in (self.path, self.artifact, self.run)) != 1:
            raise ValueError("needs exactly one of path, artifact, run")
        return self


Input = Annotated[
    str | InputFrom, Field(description="A path of a file or folder, or one of the three below.")
]


class EnvironmentFile(Exact):
    """Python version and requirements, resolved once at submit; or `host = true` for the host's own."""

    host: bool = Field(False, description="Take whatever Python the host has.")
    python: str | None = Field(
        None,
        pattern=r"^3\.\d{1,2}(\.\d{1,3})?$",
        description="The version to build with; that of `corral` itself when left out.",
    )
    requirements: list[str] | str = Field(
        default=[], description="As pip takes them: a list, or the path of a requirements file."
    )
    find_links: str | None = Field(None, description="A folder of wheels beside the index.")

    @model_validator(mode="after")
    def _host_or_built(self) -> EnvironmentFile:
        if self.host and (self.python or self.requirements):
            raise ValueError("host = true takes the host's Python: remove python and requirements")
        return self


_RESOURCES, _RETRIES, _KEEP = Resources(), RetryBudgets(), Keep()


class _Common(Exact):
    name: Name = Field("run", description="What it is called in lists; a group takes this name too.")
    project: Name = Field(
        "default", description="Which project it belongs to. `CORRAL_PROJECT` when left out."
    )
    kind: Literal["command"] = Field("command", description="What sort of run it is; there is one so far.")
    argv: list[Text] = Field(
        min_length=1,
        max_length=4096,
        description=(
            "The command, as a list. `{params.x}`, `{seed}` and `{run_id}` are filled in; other braces stay."
        ),
    )
    params: dict[Name, Scalar] = Field(
        default={},
        max_length=1024,
        description="Named values for the command; the child reads them in `CORRAL_SPEC` too.",
    )
    env: dict[EnvName, Text] = Field(
        default={},
        max_length=1024,
        description="Plain environment variables. Names that begin with `CORRAL_` are refused.",
    )
    secrets: list[EnvName] = Field(
        default=[],
        max_length=64,
        description="Names of secrets of the project; the child gets each as an environment variable.",
    )
    # Shared, since they are frozen: a default that is a model would be copied at every validation.
    resources: Resources = Field(default_factory=lambda: _RESOURCES, description="What a host must have.")
    retries: RetryBudgets = Field(
        default_factory=lambda: _RETRIES, description="How often it is tried again, by cause."
    )
    keep: Keep = Field(default_factory=lambda: _KEEP, description="Which checkpoints stay.")
    wall_limit: Duration | None = Field(
        None,
        gt=0,
        le=366 * 86400,
        description="How long it may run, over all attempts. Then it is stopped and has failed.",
    )
    stall_limit: Duration | None = Field(
        None,
        gt=0,
        le=366 * 86400,
        description="How long it may go without output, metric or progress before it is tried elsewhere.",
    )
    grace: Duration = Field(30, ge=0, le=86400, description="How long it has between SIGTERM and SIGKILL.")
    priority: int = Field(0, ge=-1000, le=1000, description="Higher goes first.")
    labels: dict[Name, Annotated[str, Field(max_length=256)]] = Field(
        default={},
        max_length=64,
        description="Your own words for it; `corral ls --label KEY=VALUE` finds them.",
    )

    @field_validator("argv", "env", "params", "labels")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        texts = value if isinstance(value, list) else [v for v in value.values() if isinstance(v, str)]
        if any("\0" in text for text in texts):
            raise ValueError("contains a NUL byte")
        return value

    @field_validator("env")
    @classmethod
    def _no_reserved(cls, value: dict[str, str]) -> dict[str, str]:
        if reserved := sorted(key for key in value if key.startswith("CORRAL_")):
            raise ValueError(f"sets {', '.join(reserved)}; names that begin with CORRAL_ are the worker's")
        return value

    @field_validator("params", "labels", mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and (bad := [k for k in value if not (isinstance(k, str) and is_name(k))]):
            raise ValueError(f"has keys that are not names: {', '.join(repr(k)[:40] for k in bad[:5])}")
        return value

    @model_validator(mode="after")
    def _secrets_and_env_apart(self) -> _Common:
        if both := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"{', '.join(both)} is both in env and in secrets")
        return self


class RunFile(_Common):
    """A run file as a user writes it. `seeds` or `[sweep]` make a group of runs."""

    code: str | None = Field(
        None,
        description=(
            "A folder to ship; the command starts in it. `.gitignore` and `.corralignore` are honoured."
        ),
    )
    environment: EnvironmentFile = Field(
        default=EnvironmentFile(host=True),
        description="The Python that it runs in; the host's own when left out.",
    )
    inputs: dict[Name, Input] = Field(
        default={},
        max_length=256,
        description=(
            "What it reads, by name; each is a folder `CORRAL_INPUT_DIR/NAME`. "
            "A single file `data/poem.txt` is `CORRAL_INPUT_DIR/NAME/poem.txt`."
        ),
    )
    seeds: list[int] = Field(default_factory=list, max_length=10_000, description="One run for each.")
    sweep: dict[Name, list[Scalar]] = Field(
        default={},
        max_length=64,
        description="Lists of values for params; one run for each combination.",
    )

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("names a seed twice")
        if any(not -(2**63) <= seed < 2**63 for seed in value):
            raise ValueError("has a seed that does not fit 64 bits")
        return value

    @field_validator("sweep")
    @classmethod
    def _not_empty(cls, value: dict[str, list[Scalar]]) -> dict[str, list[Scalar]]:
        if empty := sorted(key for key, values in value.items() if not values):
            raise ValueError(f"has no values for {', '.join(empty)}")
        return value


class BuiltEnvironment(Exact):
    """A resolved environment: the lock's text names exact versions; its digest names the venv."""

    python: str = Field(pattern=r"^3\.\d{1,2}(\.\d{1,3})?$")
    lock: str = Field(max_length=4 << 20)
    digest: DigestText
    find_links: str | None = None


class RunSpec(_Common):
    """A resolved run: one seed, no sweep; code and inputs are artifacts; the environment is locked."""

    code: ArtifactIdText | None = None
    code_digest: DigestText | None = None
    environment: BuiltEnvironment | None = None
    inputs: dict[Name, ArtifactIdText] = Field(default_factory=dict, max_length=256)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)

    @model_validator(mode="after")
    def _holes_are_filled(self) -> RunSpec:
        known = (
            {f"params.{key}" for key in self.params}
            | {"run_id"}
            | ({"seed"} if self.seed is not None else set())
        )
        for index, text in enumerate(self.argv):
            for hole in _HOLE.findall(text):
                if hole not in known:
                    raise ValueError(f"argv[{index}] names {{{hole}}}, which the run does not have")
        return self


def render_argv(spec: RunSpec, run_id: str) -> list[str]:
    """The command with `{params.x}`, `{seed}` and `{run_id}` filled in; other braces stay as they are."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name == "seed":
            return str(spec.seed)
        if name == "run_id":
            return run_id
        value = spec.params[name.removeprefix("params.")]
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [_HOLE.sub(fill, text) for text in spec.argv]
