"""Leases, as a worker uses them: every call is fenced by the lease and its epoch.

One try each: a worker has loops and a spool of its own, and must see at once that the server is away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from pydantic import BaseModel
from pydantic import JsonValue as Json

from corral.client.api import Api
from corral.client.artifacts import manifest_of
from corral.client.files.blobs import READ_BYTES, BlobSink, BlobSource
from corral.client.files.tree import Tree
from corral.client.http.errors import rebuild
from corral.client.http.transport import POLL_SLACK_S, M, Params
from corral.domain.errors import CorralError
from corral.domain.protocol import OLDEST
from corral.wire.artifacts import ArtifactView
from corral.wire.blobs import StoredBlob
from corral.wire.leases import (
    BeatAnswer,
    BeatRequest,
    ClaimAnswer,
    ClaimRequest,
    FailRequest,
    FinishRequest,
    KeptObjectList,
    ObjectAnswer,
    ObjectList,
    OutcomeAnswer,
    OutcomeReport,
    OutcomesAnswer,
    OutcomesRequest,
    StoppedRequest,
)
from corral.wire.logs import EventAnswer, EventBatch
from corral.wire.secrets import SecretsAnswer

COMMIT_TIMEOUT_S = 300.0


class ObjectVersion(NamedTuple):
    """What an object held when it was read."""

    body: bytes
    etag: str


class KeptContent(NamedTuple):
    """A part of an object that the run keeps, or all of it, while it comes."""

    size: int
    etag: str
    chunks: Iterator[bytes]


class Leases(Api):
    root = "/v1/leases"

    def claim(self, request: ClaimRequest) -> ClaimAnswer:
        content = request.json_for(self._server_protocol())
        headers, timeout_s = {"content-type": "application/json"}, request.wait_s + POLL_SLACK_S
        return self._transport.once(
            "POST", "/v1/claims", ClaimAnswer, content=content, headers=headers, timeout_s=timeout_s
        )

    def _server_protocol(self) -> int:
        """What the server speaks, which any answer of it tells."""
        if self._transport.server_protocol is None:
            self._transport.raw("GET", "/v1/health", also=(503,))
        return self._transport.server_protocol or OLDEST

    def beat(
        self, lease_id: str, epoch: int, request: BeatRequest, *, margin_s: float = POLL_SLACK_S
    ) -> BeatAnswer:
        """Give up when there is no answer `margin_s` after it was due."""
        timeout_s = request.wait_s + margin_s
        return self._post(lease_id, epoch, "beat", BeatAnswer, request, timeout_s=timeout_s)

    def secrets(self, lease_id: str, epoch: int) -> SecretsAnswer:
        return self._post(lease_id, epoch, "secrets", SecretsAnswer, None)

    def send_events(self, lease_id: str, epoch: int, batch: EventBatch) -> EventAnswer:
        return self._post(lease_id, epoch, "events", EventAnswer, batch)

    def sink(self, lease_id: str, epoch: int) -> BlobSink:
        """Where `upload` sends this lease's files."""
        return BlobSink.of_lease(self._transport, lease_id, epoch)

    def source(self, lease_id: str, epoch: int) -> BlobSource:
        """Where `download` reads what this lease's run names."""
        return BlobSource.of_lease(self._transport, lease_id, epoch)

    def commit_artifact(
        self, lease_id: str, epoch: int, tree: Tree, *, meta: Mapping[str, Json] | None = None
    ) -> ArtifactView:
        body = manifest_of("output", tree, meta=meta)
        return self._post(lease_id, epoch, "artifacts", ArtifactView, body, timeout_s=COMMIT_TIMEOUT_S)

    def commit_checkpoint(
        self, lease_id: str, epoch: int, tree: Tree, *, step: int | None, metric: float | None
    ) -> ArtifactView:
        body = manifest_of("checkpoint", tree, step=step, metric=metric)
        return self._post(lease_id, epoch, "checkpoints", ArtifactView, body, timeout_s=COMMIT_TIMEOUT_S)

    def finish(self, lease_id: str, epoch: int, request: FinishRequest) -> OutcomeAnswer:
        return self._post(lease_id, epoch, "finish", OutcomeAnswer, request)

    def fail(self, lease_id: str, epoch: int, request: FailRequest) -> OutcomeAnswer:
        known = request.known_to(self._server_protocol())
        return self._post(lease_id, epoch, "fail", OutcomeAnswer, known)

    def stopped(self, lease_id: str, epoch: int, request: StoppedRequest) -> OutcomeAnswer:
        return self._post(lease_id, epoch, "stopped", OutcomeAnswer, request)

    def outcomes(
        self, reports: Sequence[OutcomeReport]
    ) -> list[tuple[OutcomeAnswer | None, CorralError | None]]:
        """Several of the host's leases at once: for each its answer, or what its own call would raise."""
        protocol = self._server_protocol()
        known = [
            one.model_copy(update={"fail": one.fail.known_to(protocol)}) if one.fail else one
            for one in reports
        ]
        body = OutcomesRequest(reports=known)
        answer = self._transport.once("POST", "/v1/outcomes", OutcomesAnswer, body=body)
        return [
            (result.outcome, None if result.error is None else rebuild(result.error))
            for result in answer.results
        ]

    def put_object(
        self,
        lease_id: str,
        epoch: int,
        key: str,
        body: bytes,
        *,
        create: bool = False,
        if_match: str | None = None,
        request_id: str | None = None,
    ) -> ObjectAnswer:
        """PreconditionFailed if it is there already, or has another ETag. What is sent again with the same
        request id is answered as the first time."""
        headers = {"if-none-match": "*"} if create else {}
        if if_match is not None:
            headers["if-match"] = if_match
        params: Params = {"epoch": epoch, "request_id": request_id}
        path = self._object(lease_id, key)
        return self._transport.once("PUT", path, ObjectAnswer, content=body, params=params, headers=headers)

    def read_object(
        self, lease_id: str, epoch: int, key: str, *, wait_s: float = 0.0, changed_from: str | None = None
    ) -> ObjectVersion:
        """NoObject if there is none by then. With `changed_from`, wait until it has another ETag."""
        params: Params = {"epoch": epoch, "wait_s": wait_s, "changed_from": changed_from}
        path, timeout_s = self._object(lease_id, key), wait_s + POLL_SLACK_S
        answer = self._transport.raw("GET", path, params=params, timeout_s=timeout_s)
        return ObjectVersion(answer.content, answer.headers["etag"])

    def delete_object(self, lease_id: str, epoch: int, key: str) -> None:
        self._transport.raw("DELETE", self._object(lease_id, key), params={"epoch": epoch})

    def object_keys(self, lease_id: str, epoch: int, prefix: str, *, after: str = "") -> ObjectList:
        params: Params = {"epoch": epoch, "prefix": prefix, "after": after}
        return self._transport.once("GET", self._path(lease_id, "objects"), ObjectList, params=params)

    def put_kept(
        self,
        lease_id: str,
        epoch: int,
        key: str,
        content: bytes | StoredBlob,
        *,
        create: bool = False,
        if_match: str | None = None,
        request_id: str | None = None,
    ) -> ObjectAnswer:
        """An object that the run keeps: small content, or what `passing_sink` has brought.

        PreconditionFailed as for `put_object`.
        """
        headers = {"if-none-match": "*"} if create else {}
        if if_match is not None:
            headers["if-match"] = if_match
        params: Params = {"epoch": epoch, "request_id": request_id}
        body = b""
        if isinstance(content, bytes):
            body = content
        else:
            params = {**params, "sha256": content.sha256, "size": content.size}
        path = self._path(lease_id, "kept", *key.split("/"))
        return self._transport.once("PUT", path, ObjectAnswer, content=body, params=params, headers=headers)

    def passing_sink(self, lease_id: str, epoch: int) -> BlobSink:
        """Where bytes are sent that `put_kept` names next."""
        sink = BlobSink.of_lease(self._transport, lease_id, epoch)
        return replace(sink, params={**sink.params, "passing": 1})

    @contextmanager
    def read_kept(
        self,
        lease_id: str,
        epoch: int,
        key: str,
        *,
        start: int = 0,
        length: int | None = None,
        if_match: str | None = None,
    ) -> Iterator[KeptContent]:
        """NoObject if there is none; PreconditionFailed if it has another ETag."""
        params: Params = {"epoch": epoch, "start": start, "length": length}
        headers = {} if if_match is None else {"if-match": if_match}
        path = self._path(lease_id, "kept", *key.split("/"))
        with self._transport.stream("GET", path, params=params, headers=headers) as answer:
            size, etag = int(answer.headers["content-length"]), answer.headers["etag"]
            yield KeptContent(size, etag, answer.iter_raw(READ_BYTES))

    def delete_kept(self, lease_id: str, epoch: int, key: str) -> None:
        path = self._path(lease_id, "kept", *key.split("/"))
        self._transport.raw("DELETE", path, params={"epoch": epoch})

    def kept(
        self, lease_id: str, epoch: int, prefix: str = "", *, after: str = "", limit: int = 1000
    ) -> KeptObjectList:
        params: Params = {"epoch": epoch, "prefix": prefix, "after": after, "limit": limit}
        return self._transport.once("GET", self._path(lease_id, "kept"), KeptObjectList, params=params)

    def _object(self, lease_id: str, key: str) -> str:
        # Keys may hold slashes; each part is quoted by itself.
        return self._path(lease_id, "objects", *key.split("/"))

    def _post(
        self,
        lease_id: str,
        epoch: int,
        what: str,
        answer: type[M],
        body: BaseModel | None,
        *,
        timeout_s: float | None = None,
    ) -> M:
        path = self._path(lease_id, what)
        return self._transport.once(
            "POST", path, answer, body=body, params={"epoch": epoch}, timeout_s=timeout_s
        )
