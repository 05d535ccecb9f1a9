"""The manifest: the file that an operator writes, and what is asked and answered about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, create_model, field_validator
from pydantic import JsonValue as Json

from corral.domain.canonical import digest_of
from corral.wire.base import Answer, AnswerPage, DigestText, Exact, Name, Strict, explain
from corral.wire.errors import ErrorField
from corral.wire.hosts import HostTable
from corral.wire.spec.identity import POLICY
from corral.wire.spec.run_file import BuiltEnvironment, PackedSpec, RunSpec
from corral.wire.spec.submitted import without_instances
from corral.wire.spec.train import each

MAX_RUNS = 50_000

# The same fields as those of a run, so that there is one definition of them.
_FIELDS: dict[str, Any] = {
    name: (RunSpec.model_fields[name].annotation, RunSpec.model_fields[name]) for name in POLICY
}
_Policy: Any = create_model("RunPolicy", __base__=Exact, **_FIELDS)


class ManifestPolicy:
    """What is not part of a run's identity: by name, all of it, and the digest of what is not usual."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        read = _Policy.model_validate(dict(table))
        self.fields: dict[str, Any] = {name: getattr(read, name) for name in POLICY}
        self.values: dict[str, Any] = read.model_dump(mode="json")
        # A key that a later version adds must not change it.
        self.digest = digest_of(read.model_dump(mode="json", exclude_defaults=True))


def _checked(table: dict[str, Any]) -> dict[str, Any]:
    try:
        ManifestPolicy(table)
    except ValidationError as error:
        raise ValueError(explain(_Policy, error, what="it").message) from None
    return table


PolicyTable = Annotated[
    dict[str, Json],
    AfterValidator(_checked),
    Field(description=f"Of a run file, any of {', '.join(f'`{name}`' for name in POLICY)}."),
]


class RunEntry(Strict):
    """A run by what it is; `policy` is the place of its policy in `policies`."""

    identity: DigestText
    name: Name
    group: Name | None = None
    policy: int = Field(ge=0)
    fitted: bool = Field(
        False,
        description="Its resources were worked out from the hosts there are; a known run keeps its own.",
    )


class ApplyRequest(Strict):
    """A manifest, by the identities of its runs. Of runs that are new, `specs` are needed too.

    An answer that is not `complete` names them; nothing was changed then.
    """

    project: Name
    name: Name
    mode: Literal["plan", "apply"]
    also: list[Literal["prune", "prune_running", "retry_failed"]] = Field(default=[], max_length=3)
    hosts: dict[Name, HostTable] = Field(default={}, max_length=10_000)
    max_running: dict[Name, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(
        default={}, max_length=10_000, description="By group: how many of its runs at once."
    )
    policies: list[PolicyTable] = Field(default=[], max_length=MAX_RUNS)
    runs: list[RunEntry] = Field(default=[], max_length=MAX_RUNS)
    environments: list[BuiltEnvironment] = Field(default=[], max_length=1000)
    specs: list[PackedSpec] = Field(default=[], max_length=MAX_RUNS)

    @field_validator("specs")
    @classmethod
    def _train_tables_are_valid(cls, value: list[PackedSpec]) -> list[PackedSpec]:
        return each(without_instances(value), PackedSpec.checked)

    @field_validator("runs")
    @classmethod
    def _distinct(cls, value: list[RunEntry]) -> list[RunEntry]:
        seen: dict[str, str] = {}
        for entry in value:
            if entry.identity in seen:
                raise ValueError(f"has {seen[entry.identity]} and {entry.name}, which are the same work")
            seen[entry.identity] = entry.name
        return value


class DifferenceView(Answer):
    path: str
    old: Json = None
    new: Json = None


class ChangeView(Answer):
    """One thing that applying does: to a run, or to what is declared of a host."""

    action: Literal["new", "again", "changed", "restored", "removed", "pruned", "stopped"]
    kind: Literal["run", "host", "group"]
    name: str
    identity: str | None = None
    run_id: str | None = None
    state: str | None = None
    fields: list[DifferenceView] = []
    former: str | None = Field(
        None, description="Of a new run: the run of this name that the manifest named before."
    )


class ApplyAnswer(Answer):
    """`ended` failed or were cancelled and stay so; `gone` were removed before and are held."""

    project: str
    name: str
    applied: bool
    complete: bool = True
    revision: int | None = None
    changes: list[ChangeView] = []
    same: int = 0
    ended: list[ChangeView] = []
    gone: list[ChangeView] = []
    needs: list[str] = []
    problems: list[ErrorField] = []


class ManifestView(Answer):
    project: str
    name: str
    revision: int
    digest: str
    applied_at: float
    applied_by: str
    runs: int
    hosts: list[str] = []


class ManifestDetail(ManifestView):
    """`states` counts its runs, newest generations only; `gone` are those that it no longer names."""

    states: dict[str, int] = {}
    gone: list[ChangeView] = []


class ManifestPage(AnswerPage[ManifestView]): ...


class ManifestFile(Exact):
    """A manifest as a user writes it. `runs` as `[[runs]]`, or by name as `[runs.NAME]`."""

    name: Name | None = Field(None, description="What it is called; the file's own name when left out.")
    project: Name = Field(
        "default", description="Which project its runs belong to. `CORRAL_PROJECT` when left out."
    )
    defaults: dict[str, Json] = Field(
        default={}, description="Keys of a run file that every run has which does not say otherwise."
    )
    hosts: dict[Name, HostTable] = Field(
        default={}, description="What may be used of a host, and for what; the more restrictive wins."
    )
    runs: list[dict[str, Json]] = Field(
        default=[],
        description=(
            "The runs, as `[[runs]]` or by name as `[runs.NAME]`: each the keys of a run file, and `group`; "
            "with `file`, what stands in that run file with the keys here over it."
        ),
    )
