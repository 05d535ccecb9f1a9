"""The run: the file that a user writes, and the resolved spec that the server keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from corral.domain.hosts.capability import Requirements
from corral.domain.ids import is_name
from corral.domain.secrets.secrets import refusal, secret_names
from corral.durations import LEAST_S
from corral.recipes import models
from corral.recipes.train import to_table
from corral.wire.base import ArtifactIdText, DigestText, Duration, Exact, JsonMap, Name, PartText, Size
from corral.wire.spec.diloco import DilocoFileTable, DilocoTable, replicas_fit, settled_diloco
from corral.wire.spec.tables import (
    EnvironmentFile,
    EnvName,
    Input,
    Keep,
    Parents,
    PlacementTable,
    PythonVersion,
    Replicas,
    ReplicasText,
    Resources,
    RetryBudgets,
    ScheduleTable,
)
from corral.wire.spec.train import (
    INPUTS,
    EvalRequest,
    ModelRef,
    SampleRequest,
    Task,
    TrainFileTable,
    TrainTable,
    parsed,
    under_train,
)

Scalar = bool | int | float | str
Text = Annotated[str, Field(max_length=32_768)]
_HOLE = re.compile(r"\{(params\.[A-Za-z0-9_-]+|seed|run_id)\}")
_RESOURCES, _RETRIES, _KEEP, _ALONE = Resources(), RetryBudgets(), Keep(), Replicas(min=1, max=1)
_ANYWHERE = PlacementTable()
INSTANCE = "is made by a deploy: `corral fn deploy app.py`"


class _RunFields(Exact):
    name: Name = Field("run", description="What it is called in lists; a group takes this name too.")
    project: Name = Field(
        "default", description="Which project it belongs to. `CORRAL_PROJECT` when left out."
    )
    kind: Literal["command", "train", "service"] = Field(
        "command", description="What sort of run it is; follows from whether there is a `[train]` table."
    )
    model: ModelRef | None = Field(
        None,
        description="What `[train]` trains: a name from `corral models`, a Hugging Face id, or a folder.",
    )
    train: TrainTable | None = Field(None, validate_default=True)
    argv: list[Text] = Field(
        default=[],
        max_length=4096,
        validate_default=True,
        description=(
            "The command, as a list; needed where there is no `[train]`. "
            "`{params.x}`, `{seed}` and `{run_id}` are filled in; other braces stay."
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
        description=(
            "Plain environment variables, which whoever sees the run can read. Names that begin with "
            "`CORRAL_` are refused, and those that look like secrets'."
        ),
    )
    secrets: list[EnvName] = Field(
        default=[],
        max_length=64,
        description="Names of secrets of the project; the child gets each as an environment variable.",
    )
    # Shared, since they are frozen: a default that is a model would be copied at every validation.
    resources: Resources = Field(default_factory=lambda: _RESOURCES, description="What a host must have.")
    replicas: ReplicasText = Field(
        default_factory=lambda: _ALONE,
        description=(
            "How many ranks, each with `[resources]`: a number, all of which start and end together; or "
            "`{ min = 2, max = 8 }` for work that goes on while `min` of them run."
        ),
    )
    diloco: DilocoTable | None = Field(None, validate_default=True)
    placement: PlacementTable = Field(
        default_factory=lambda: _ANYWHERE, description="Which executors may bring up workers for it."
    )
    retries: RetryBudgets = Field(
        default_factory=lambda: _RETRIES, description="How often it is tried again, by cause."
    )
    keep: Keep = Field(default_factory=lambda: _KEEP, description="Which checkpoints stay.")
    wall_limit: Duration | None = Field(
        None,
        ge=LEAST_S,
        le=366 * 86400,
        description="How long it may run, over all attempts. Then it is stopped and has failed.",
    )
    stall_limit: Duration | None = Field(
        None,
        ge=LEAST_S,
        le=366 * 86400,
        description="How long it may go without output, metric or progress before it is tried elsewhere.",
    )
    grace: Duration = Field(30, ge=0, le=86400, description="How long it has between SIGTERM and SIGKILL.")
    priority: int = Field(0, ge=-1000, le=1000, description="Higher goes first.")
    preemptible: bool = Field(
        False,
        description=(
            "Whether it may be asked to make room for a run of higher priority. It gets SIGTERM and its"
            " grace, and goes on from its checkpoint later. Costs no retry."
        ),
    )
    labels: dict[Name, Annotated[str, Field(max_length=256)]] = Field(
        default={},
        max_length=64,
        description="Your own words for it; `corral ls --label KEY=VALUE` finds them.",
    )

    after: Parents = Field(
        default=[],
        description=(
            "Runs that must succeed first: their ids, or tables with `run`, `input` and `on_failure`."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _a_train_table_makes_the_kind(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("train") is not None and "kind" not in value:
            return {**value, "kind": "train"}
        return value

    @field_validator("train")
    @classmethod
    def _train_fits_the_kind(
        cls, value: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        # One that is wrong itself is not among the data.
        kind, model = info.data.get("kind", "train"), info.data.get("model", "")
        if value is None and kind == "train" and "kind" in info.data:
            raise ValueError('is required where kind = "train"')
        if value is None and model:
            raise ValueError("is required where a model is named")
        if value is not None and kind != "train":
            raise ValueError(f'makes a run of kind "train"; remove kind = "{kind}"')
        if value is not None and model is None:
            raise ValueError('needs a model beside it: model = "corral/tiny", above the first table')
        return value

    @field_validator("argv")
    @classmethod
    def _argv_or_train(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if "train" not in info.data or (info.data["train"] is None) == bool(value):
            return value
        if info.data.get("kind") == "service" and not value:
            return value
        if value:
            raise ValueError("has no place beside [train]: the training engine is what runs")
        raise ValueError("is required: the command to run, or a [train] table")

    @field_validator("resources")
    @classmethod
    def _one_gpu_trains(cls, value: Resources, info: ValidationInfo) -> Resources:
        if info.data.get("train") is not None and value.gpus > 1:
            raise ValueError(f"asks for {value.gpus} GPUs; training takes one so far")
        return value

    @field_validator("replicas")
    @classmethod
    def _ranks_are_alike(cls, value: Replicas, info: ValidationInfo) -> Replicas:
        kind, resources = info.data.get("kind"), info.data.get("resources")
        if value.max == 1:
            return value
        if kind == "service":
            raise ValueError("is not for instances of an endpoint: they scale by themselves")
        if resources is not None and resources.prefer is not None:
            raise ValueError("has no place beside `resources.prefer`: some ranks would get a GPU, others not")
        return value

    @field_validator("diloco")
    @classmethod
    def _replicas_meet(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        return replicas_fit(value, info.data)

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
    def _secrets_and_env_apart(self) -> _RunFields:
        if both := sorted(set(self.env) & set(self.secrets)):
            raise _at("secrets", f"has {', '.join(both)}, which is in env too")
        return self


class RunFile(_RunFields):
    """A run file as a user writes it. `seeds` or `[sweep]` make a group of runs."""

    train: TrainFileTable | None = Field(
        None, validate_default=True, description="How to train; makes it a run of kind `train`."
    )
    diloco: DilocoFileTable | None = Field(
        None,
        validate_default=True,
        description="How the replicas of a `[train]` meet: each trains on rows of its own, and every so many "
        "steps they agree on common weights, by way of a store.",
    )
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
    params_schema: str | None = Field(
        None, description="A JSON Schema that the params are checked against before anything is queued."
    )
    params_from: str | None = Field(
        None,
        description=(
            "A Python script whose own `argparse` parser the params and argv are checked against: it is run "
            "as far as its first parse, or read where that fails."
        ),
    )
    seeds: list[int] = Field(default_factory=list, max_length=10_000, description="One run for each.")
    sweep: dict[Name, list[Scalar]] = Field(
        default={},
        max_length=64,
        description=(
            "Lists of values for params, or for settings of `[train]` as `train.lora.rank`; "
            "one run for each combination."
        ),
    )

    max_running: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="How many runs of the group may be queued or running at once; the others are held.",
    )

    @classmethod
    def elsewhere(cls, key: str) -> str:
        return under_train(key)

    @field_validator("environment", mode="before")
    @classmethod
    def _is_of_packages(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("must be a table; the environment of a training run belongs under [train]")
        return value

    @field_validator("model")
    @classmethod
    def _is_listed_if_ours(cls, value: str | None) -> str | None:
        """The hub has no names of Corral's own: one that is not listed is a slip."""
        if value is None or not value.lower().startswith("corral/") or models.facts(value) is not None:
            return value
        near = models.near(value)
        raise ValueError(f"is no model of Corral's{f'; did you mean `{near}`?' if near else ''}")

    @field_validator("resources")
    @classmethod
    def _sizes_are_not_meant_in_gib(cls, value: Resources) -> Resources:
        """A bare number is bytes, and nobody asks for a few. A spec that is stored already stays as it is."""
        for name in ("min_ram", "min_vram", "min_disk"):
            size = getattr(value, name)
            if size is not None and 0 < size < _LEAST_SIZE:
                raise _at(name, f'is {size} bytes; write a size as "{size}GiB"')
        return value

    @field_validator("kind")
    @classmethod
    def _not_an_instance(cls, value: str) -> str:
        if value == "service":
            raise ValueError(INSTANCE)
        return value

    @field_validator("train")
    @classmethod
    def _train_is_valid(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        if value is not None:
            # Kept as it was written: a sweep fills in more before the defaults are settled.
            parsed(info.data.get("model") or "?", value)
        return value

    @field_validator("diloco")
    @classmethod
    def _diloco_is_valid(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        replicas = info.data.get("replicas")
        return value if value is None or replicas is None else settled_diloco(value, replicas)

    @field_validator("sweep", mode="before")
    @classmethod
    def _dotted(cls, value: Any) -> Any:
        """`train.lora.rank = [8, 16]` is a table in a table for TOML; here it is one key."""
        return dict(_flat(value)) if isinstance(value, dict) else value

    @field_validator("params", "sweep", "seeds", "inputs")
    @classmethod
    def _with_effect(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if "train" not in info.data:
            return value
        if info.data["train"] is None:
            if name == "sweep" and (lost := [key for key in value if key.startswith("train.")]):
                raise ValueError(f"names {', '.join(lost)}, but there is no [train]")
        elif name == "params" and value:
            raise ValueError("has no effect beside [train]; an environment's are `train.environment_params`")
        elif name == "sweep" and (lost := [key for key in value if not key.startswith("train.")]):
            raise ValueError(f"names {', '.join(lost)}; beside [train] its settings are swept: `train.steps`")
        elif name == "seeds" and any(seed < 0 for seed in value):
            raise ValueError("has a negative seed")
        elif name == "inputs" and (taken := sorted(set(value) & set(INPUTS))):
            raise ValueError(f"names {', '.join(taken)}; beside [train] that is what the table itself names")
        return value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("names a seed twice")
        if any(not -(2**63) <= seed < 2**63 for seed in value):
            raise ValueError("has a seed that does not fit 64 bits")
        return value

    public_env: list[EnvName] = Field(
        default=[],
        max_length=64,
        description="Names in `env` that look like those of secrets, and are none.",
    )

    @model_validator(mode="after")
    def _secrets_are_not_in_clear(self) -> Self:
        if found := secret_names(self.env, self.public_env):
            raise in_clear(found)
        return self

    schedule: ScheduleTable | None = Field(
        None, description="When to make the runs again and again; for `corral schedules add`."
    )

    @field_validator("max_running")
    @classmethod
    def _of_a_group(cls, value: int | None, info: ValidationInfo) -> int | None:
        several = info.data.get("seeds", True) or info.data.get("sweep", True)
        if value is not None and not several:
            raise ValueError("is for a group of runs: it needs `seeds` or a `[sweep]` beside it")
        return value

    @field_validator("sweep")
    @classmethod
    def _not_empty(cls, value: dict[str, list[Scalar]]) -> dict[str, list[Scalar]]:
        if empty := sorted(key for key, values in value.items() if not values):
            raise ValueError(f"has no values for {', '.join(empty)}")
        return value


_LEAST_SIZE = 1 << 20


def _at(place: str, message: str) -> ValidationError:
    """What several fields say together, told of the one that can be changed."""
    kind = PydanticCustomError("together", "{said}", {"said": message})
    return ValidationError.from_exception_data(place, [InitErrorDetails(type=kind, loc=(place,), input=None)])


def in_clear(names: Iterable[str]) -> ValidationError:
    """Of plain variables whose names look like those of secrets, each at its place."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError("secret", "{said}", {"said": refusal(name)}),
            loc=("env", name),
            input=None,
        )
        for name in names
    ]
    return ValidationError.from_exception_data("env", lines)


def _flat(table: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Any, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(key, str):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield (f"{prefix}{key}" if isinstance(key, str) else key), value


class BuiltEnvironment(Exact):
    """A resolved environment: the lock's text names exact versions; its digest names the venv."""

    python: PythonVersion
    lock: str = Field(max_length=4 << 20)
    digest: DigestText
    find_links: str | None = None
    no_index: bool = Field(False, description="Whether `find_links` is the only source.")


class ServiceTable(Exact):
    """Which endpoint, version and pool an instance serves; `params` are those of its class."""

    entry: JsonMap = Field(description="How the instance finds what it serves.")
    functions: dict[str, dict[str, Any]] = Field(default={}, description="What it serves; from the deploy.")
    endpoint: Name = "endpoint"
    endpoint_id: str | None = Field(None, pattern=r"^e-[a-z0-9]{12}$")
    version: int = Field(0, ge=0)
    pool: str = Field("", max_length=64)
    params: JsonMap | None = None
    concurrency: int = Field(1, ge=1, le=1000)
    volumes: dict[Name, Name] = Field(
        default={}, max_length=32, description="Folders that are volumes: the folder's name, the volume's."
    )
    max_memory: Size | None = Field(
        None, ge=1 << 20, le=1 << 50, description="An instance that has more than this is replaced."
    )


class _ResolvedRun(_RunFields):
    service: ServiceTable | None = Field(None, description="Of an instance of an endpoint: what it serves.")
    model_revision: str | None = Field(
        None, max_length=256, description="The commit or digest that `model` stood for when it was submitted."
    )
    task: Task = Field("train", description="What a run of kind train does with its model.")
    eval: EvalRequest | None = Field(None, description="For the task of that name.")
    sample: SampleRequest | None = Field(None, description="For the task of that name.")
    code: ArtifactIdText | None = None
    code_digest: DigestText | None = None
    inputs: dict[Name, ArtifactIdText] = Field(default={}, max_length=256)
    input_digests: dict[Name, DigestText] = Field(
        default={}, max_length=256, description="What each input holds: the digest of its artifact."
    )
    input_paths: dict[Name, PartText] = Field(
        default={},
        max_length=256,
        description="Of an input that is a part of its artifact: the file or folder.",
    )
    origins: dict[str, list[DigestText]] = Field(
        default={},
        max_length=2048,
        description="Identities of runs: those that make `inputs.NAME`, or that `after` names.",
    )
    params_from: PartText | None = Field(
        None, description="The script in the code whose parser the params were checked against."
    )
    params_schema: PartText | None = Field(
        None, description="The JSON Schema in the code that the params were checked against."
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)

    @model_validator(mode="after")
    def _asked_for_the_task(self) -> Self:
        if self.task == "train" and self.eval is None and self.sample is None:
            return self
        if self.kind != "train":
            raise ValueError(f'has the task "{self.task}", which only a run of kind "train" can have')
        asked = {"eval": self.eval, "sample": self.sample}
        if unused := [name for name, given in asked.items() if given is not None and name != self.task]:
            raise ValueError(f'has {unused[0]}, but its task is "{self.task}"')
        if self.task == "sample" and self.sample is None:
            raise ValueError('has the task "sample" but nothing to ask')
        return self

    @model_validator(mode="after")
    def _parts_are_of_inputs(self) -> Self:
        inputs = {*self.inputs, *self.input_digests, *(one.input for one in self.after)}
        if unknown := sorted(set(self.input_paths) - inputs):
            raise ValueError(f"has a path for the input {unknown[0]}, which it does not have")
        return self

    @model_validator(mode="after")
    def _holes_are_filled(self) -> Self:
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

    def checked(self) -> Self:
        """The same with a complete train table. ValidationError names every fault of the one it has."""
        if self.train is None:
            return self
        whole: dict[str, Any] = {"train": to_table(parsed(self.model or "?", self.train))}
        if self.diloco is not None:
            whole["diloco"] = settled_diloco(self.diloco, self.replicas)
        return self.model_copy(update=whole)


class PackedSpec(_ResolvedRun):
    """A resolved run beside others that share its environment, which it names by its digest."""

    environment: DigestText | None = None

    def unpacked(self, environments: Mapping[str, BuiltEnvironment]) -> RunSpec:
        """KeyError where the environment is not among them."""
        whole = None if self.environment is None else environments[self.environment]
        # Checked already: the two differ in nothing else.
        return RunSpec.model_construct(**{**self.__dict__, "environment": whole})


class RunSpec(_ResolvedRun):
    """A resolved run: one seed, no sweep; code and inputs are artifacts; the environment is locked.

    Of a stored one the train table is not checked again: what was accepted once stays readable.
    """

    environment: BuiltEnvironment | None = None

    def requirements(self) -> Requirements:
        # An environment that is built for the run brings the engine along.
        engine = self.kind == "train" and self.environment is None
        recipe = None if self.train is None else self.train.get("recipe")
        return replace(
            self.resources.requirements(),
            engine=engine,
            kind=self.kind,
            recipe=recipe if isinstance(recipe, str) else None,
            model=self.model,
            secrets=bool(self.secrets),
            ranks=self.replicas.min,
            most_ranks=self.replicas.max,
            executors=tuple(self.placement.executors),
        )


def packed(spec: RunSpec) -> PackedSpec:
    digest = None if spec.environment is None else spec.environment.digest
    return PackedSpec.model_construct(**{**spec.__dict__, "environment": digest})


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
