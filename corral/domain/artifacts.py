"""Bytes named by their digest, and the manifests that name them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from corral.domain.canonical import digest_of
from corral.domain.ids import ArtifactId, Digest, HostId, RunId


class ArtifactKind(StrEnum):
    OUTPUT = "output"
    CHECKPOINT = "checkpoint"
    CODE = "code"
    INPUT = "input"
    # One version of a volume; lives and goes with it.
    VOLUME = "volume"


class Artifact(NamedTuple):
    """A committed manifest. Run to host are its provenance; None for what a user uploaded."""

    id: ArtifactId
    project: str
    kind: ArtifactKind
    digest: Digest
    files: int
    bytes: int
    run_id: RunId | None
    attempt: int | None
    rank: int | None
    epoch: int | None
    host_id: HostId | None
    step: int | None
    metric: float | None
    meta: str
    pinned: bool
    created_at: float
    created_by: str


class ArtifactFile(NamedTuple):
    path: str
    digest: Digest
    size: int
    mode: int


def listing_digest(files: Iterable[tuple[str, str, int, int]]) -> Digest:
    """Of path, digest, size and mode. Equal content has an equal digest, whoever made it and when."""
    return digest_of([list(file) for file in sorted(files)])


class Blob(NamedTuple):
    """A project's right to some bytes. Condemned rows are on their way out and cannot be pinned."""

    project: str
    digest: Digest
    size: int
    created_at: float
    condemned_at: float | None


class Segment(NamedTuple):
    """A piece of a log or of metrics in the object store; only `bytes` of the file count."""

    run_id: RunId
    attempt: int
    rank: int
    stream: str
    n: int
    bytes: int
    records: int
    created_at: float


class NamedObject(NamedTuple):
    run_id: RunId
    key: str
    etag: str
    body: bytes
    epoch: int
    updated_at: float


# An object that a run keeps and that is no larger comes with its name, and not as a blob before it.
MAX_INLINE_BYTES = 1 << 20


class KeptObject(NamedTuple):
    """A name that a run has for a blob, over all its attempts. `updated_at` is the server's time."""

    run_id: RunId
    key: str
    etag: str
    digest: Digest
    size: int
    epoch: int
    updated_at: float


class ObjectCounts(NamedTuple):
    """Whose attempt the objects of a run are, how many they are and how many bytes they have."""

    run_id: RunId
    attempt: int
    objects: int = 0
    bytes: int = 0
