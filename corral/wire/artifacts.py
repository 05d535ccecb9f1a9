"""Artifacts: manifests of files, as workers and users commit and read them."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator
from pydantic import JsonValue as Json

from corral.wire.base import Answer, AnswerPage, DigestText, JsonMap, Strict, known_only

MAX_META_BYTES = 1 << 20


class VerifyAnswer(Answer):
    artifact_id: str
    files: int
    bytes: int
    problems: list[str]


def _plain_mode(mode: int) -> int:
    if mode not in (0o644, 0o755):
        raise ValueError("is neither 420 (a file) nor 493 (an executable file)")
    return mode


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

    @field_validator("meta")
    @classmethod
    def _meta_is_not_large(cls, value: dict[str, Json]) -> dict[str, Json]:
        size = len(json.dumps(value, ensure_ascii=False).encode())
        if size > MAX_META_BYTES:
            raise ValueError(
                f"has {size} bytes as JSON, {MAX_META_BYTES} at most are kept; put it into a file"
            )
        return value


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


class ArtifactPage(AnswerPage[ArtifactView]): ...


class FilePage(AnswerPage[Annotated[FileRecord, known_only(FileRecord)]]): ...
