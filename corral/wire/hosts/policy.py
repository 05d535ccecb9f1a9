"""The `[hosts.NAME]` table of a manifest: what an operator declares of a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, WithJsonSchema

from corral.domain.errors import FieldError, InvalidInput
from corral.domain.hosts.policy import SUBJECTS, HostPolicy
from corral.wire.base import Exact, Name, Size, explain


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
        )


def parse_declared(table: Mapping[str, object], path: str) -> HostPolicy:
    """InvalidInput names every fault with its place below `path` (`hosts.big`)."""
    try:
        return HostTable.model_validate(table).declared()
    except ValidationError as error:
        found = explain(HostTable, error, what=path)
        fields = [FieldError(_below(path, field.path), field.message) for field in found.fields]
        lines = "; ".join(f"`{field.path}` {field.message}" for field in fields[:20])
        raise InvalidInput(f"{path} is not valid: {lines}", fields=fields) from None


def _below(path: str, place: str) -> str:
    return path if place == "(whole)" else f"{path}.{place}"
