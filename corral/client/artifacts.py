"""Committed manifests: reading, checking and keeping them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue as Json

from corral.client.api import Api
from corral.client.files.tree import FileEntry, Tree
from corral.client.http.transport import quoted
from corral.wire.artifacts import (
    ArtifactPage,
    ArtifactView,
    FilePage,
    FileRecord,
    ManifestRequest,
    VerifyAnswer,
)

FILES_PAGE = 1_000
# Re-hashing terabytes takes its time.
VERIFY_TIMEOUT_S = 6 * 3600.0


def records(files: Sequence[FileEntry]) -> list[FileRecord]:
    # Built without validation: a scanned tree is checked already, and may hold 200,000 files.
    return [FileRecord.model_construct(path=f.path, sha256=f.digest, size=f.size, mode=f.mode) for f in files]


def manifest_of(
    kind: Literal["code", "input", "output", "checkpoint"],
    tree: Tree,
    *,
    step: int | None = None,
    metric: float | None = None,
    meta: Mapping[str, Json] | None = None,
) -> ManifestRequest:
    return ManifestRequest.model_construct(
        kind=kind, files=records(tree.files), step=step, metric=metric, meta=dict(meta or {})
    )


class Artifacts(Api):
    root = "/v1/artifacts"

    def page(self, *, project: str | None = None, cursor: str | None = None, limit: int = 50) -> ArtifactPage:
        params = {"project": project, "cursor": cursor, "limit": limit}
        return self._transport.get(self.root, ArtifactPage, params)

    def get(self, artifact_id: str) -> ArtifactView:
        return self._transport.get(self._path(artifact_id), ArtifactView)

    def tree(self, artifact_id: str, params: Mapping[str, str | int] | None = None) -> Tree:
        """All files of it. `params` says as whose lease, for a worker."""
        path, limited = self._path(artifact_id, "files"), {**(params or {}), "limit": FILES_PAGE}
        files = self._transport.items(path, FilePage, limited, cursor="after")
        return Tree.of(FileEntry(file.path, file.size, file.mode, file.sha256) for file in files)

    def commit(
        self,
        project: str,
        *,
        kind: Literal["code", "input"],
        tree: Tree,
        meta: Mapping[str, Json] | None = None,
    ) -> ArtifactView:
        """A user's code or input, whose blobs are there. Equal content gives the artifact that exists."""
        body = manifest_of(kind, tree, meta=meta)
        path = f"/v1/projects/{quoted(project)}/artifacts"
        return self._transport.repeat("POST", path, ArtifactView, body=body, timeout_s=300)

    def verify(self, artifact_id: str) -> VerifyAnswer:
        """Read every byte of it again, on the server."""
        path = self._path(artifact_id, "verify")
        return self._transport.once("POST", path, VerifyAnswer, timeout_s=VERIFY_TIMEOUT_S)

    def pin(self, artifact_id: str) -> ArtifactView:
        return self._transport.repeat("POST", self._path(artifact_id, "pin"), ArtifactView)

    def unpin(self, artifact_id: str) -> ArtifactView:
        return self._transport.repeat("POST", self._path(artifact_id, "unpin"), ArtifactView)

    def delete(self, artifact_id: str) -> None:
        # Once: a second try after a lost answer would say that it does not exist.
        self._transport.once("DELETE", self._path(artifact_id), type(None))
