"""Objects that a run keeps, between its child and the server: see `corral/diloco/rank_store.py`.

What a child writes waits in a file of the run's folder until it ended it: the server is sent nothing that may
not become whole, and can be sent it again. What it reads is passed on as it comes.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, Protocol, TypeVar

from corral.client.corral import Corral
from corral.domain.artifacts import MAX_INLINE_BYTES
from corral.domain.errors import (
    BlobMissing,
    CorralError,
    InvalidInput,
    OffsetMismatch,
    SecretExposed,
)
from corral.domain.secrets.redact import SecretValues
from corral.wire.blobs import StoredBlob
from corral.worker.child.rank_question import RankQuestion
from corral.worker.server_link import WaitAbandoned

T = TypeVar("T")
Message = dict[str, Any]
Spool = SpooledTemporaryFile[bytes]

KEPT = "kept "
# How long a child may think between two pieces of what it writes or reads.
PIECE_S = 3600.0
MOST_PIECE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
# What was uploaded may have been collected before it was named: only after an outage of an hour.
_TRIES = 5


class HostDiskFull(CorralError):
    """What a child writes has no room on its host."""

    code = "host_disk_full"
    hint = "Free some space on the host; the run's folder takes what its child writes at once."


class Attempts(Protocol):
    """Asks the server again while it is away, until nobody waits for the answer."""

    def __call__(self, call: Callable[[Corral], T], /) -> T: ...


class _SpooledContent(NamedTuple):
    file: Spool
    sha256: str
    size: int

    def chunks(self, start: int) -> Iterator[bytes]:
        self.file.seek(start)
        while chunk := self.file.read(_CHUNK_BYTES):
            yield chunk


@dataclass(frozen=True)
class KeptExchange:
    """One question of the child and its answer."""

    child: socket.socket
    question: RankQuestion
    lease: tuple[str, int]
    attempt: Attempts
    secrets: SecretValues
    folder: Path

    def answer(self) -> Message | None:
        """None where the answer was content, which the child has."""
        question, lease = self.question, self.lease
        match question.do.removeprefix(KEPT):
            case "get":
                return self._read()
            case "put":
                with SpooledTemporaryFile(MAX_INLINE_BYTES, dir=str(self.folder)) as file:
                    return self._write(self._received(file))
            case "delete":
                key = question.text("key")
                self.attempt(lambda corral: corral.leases.delete_kept(*lease, key))
                return {}
            case "list":
                prefix, after = question.text("prefix"), question.text("after")
                told = self.attempt(lambda corral: corral.leases.kept(*lease, prefix, after=after))
                return told.model_dump()
            case "now":
                return {"now": self.attempt(lambda corral: corral.leases.kept(*lease, limit=1)).now}
        raise InvalidInput(f"not something to ask for: {question.do[:40]!r}")

    # -- writing --------------------------------------------------------------------------------------

    def _received(self, file: Spool) -> _SpooledContent:
        """Whole, or an OSError because the child hung up."""
        self.child.settimeout(PIECE_S)
        sha, size, overlap, tail = hashlib.sha256(), 0, self.secrets.overlap_bytes(), b""
        exposed = None
        for chunk in _pieces(self.child):
            sha.update(chunk)
            size += len(chunk)
            # It is read to its end all the same: the child hears the answer after that.
            exposed = exposed or self.secrets.find(tail + chunk)
            tail = (tail + chunk)[-overlap:] if overlap else b""
            self._spool(file, chunk)
        if exposed is not None:
            raise SecretExposed(f"an object contains the value of the secret {exposed}")
        return _SpooledContent(file, sha.hexdigest(), size)

    def _spool(self, file: Spool, chunk: bytes) -> None:
        try:
            file.write(chunk)
        except OSError as error:
            raise HostDiskFull(f"the worker cannot write to {self.folder}: {error}") from error

    def _write(self, content: _SpooledContent) -> Message:
        for _ in range(_TRIES - 1):
            try:
                return self._write_once(content)
            except (BlobMissing, OffsetMismatch):
                continue
        return self._write_once(content)

    def _write_once(self, content: _SpooledContent) -> Message:
        said: bytes | StoredBlob
        if content.size <= MAX_INLINE_BYTES:
            said = b"".join(content.chunks(0))
        else:
            self.attempt(lambda corral: self._upload(corral, content))
            said = StoredBlob(sha256=content.sha256, size=content.size, existed=True)
        question = self.question

        def name(corral: Corral) -> Message:
            told = corral.leases.put_kept(
                *self.lease,
                question.text("key"),
                said,
                create=question.creates,
                if_match=question.text("if_match") or None,
                request_id=question.id,
            )
            return {"etag": told.etag}

        return self.attempt(name)

    def _upload(self, corral: Corral, content: _SpooledContent) -> None:
        """From where a try before this one broke off."""
        sink = corral.leases.passing_sink(*self.lease)
        told = sink.query([content.sha256])
        if content.sha256 not in told.missing:
            return
        offset = told.offsets.get(content.sha256, 0)
        offset = offset if offset < content.size else 0
        length = content.size - offset
        sink.put(content.sha256, content.chunks(offset), length=length, offset=offset or None)

    # -- reading --------------------------------------------------------------------------------------

    def _read(self) -> Message | None:
        reading = _KeptReading(self, self.question.count("start") or 0, self.question.count("length"))
        try:
            self.attempt(reading.go_on)
        except (CorralError, WaitAbandoned):
            # After its beginning there is no other way to say so than to hang up.
            if reading.etag is None:
                raise
        return None


@dataclass
class _KeptReading:
    """What the child has of one version of an object."""

    exchange: KeptExchange
    start: int
    left: int | None
    etag: str | None = None

    def go_on(self, corral: Corral) -> None:
        """PreconditionFailed or NoObject if it is another object by now."""
        child, key = self.exchange.child, self.exchange.question.text("key")
        child.settimeout(PIECE_S)
        with corral.leases.read_kept(
            *self.exchange.lease, key, start=self.start, length=self.left, if_match=self.etag
        ) as content:
            if self.etag is None:
                self.etag, self.left = content.etag, content.size
                child.sendall(json.dumps({"size": content.size, "etag": content.etag}).encode() + b"\n")
            for chunk in content.chunks:
                child.sendall(chunk)
                self.start += len(chunk)
                self.left = (self.left or 0) - len(chunk)


def _pieces(child: socket.socket) -> Iterator[bytes]:
    """Until the one without bytes."""
    while size := int.from_bytes(_exactly(child, 4), "big"):
        if size > MOST_PIECE_BYTES:
            raise InvalidInput(f"a piece of {size} bytes; {MOST_PIECE_BYTES} are allowed")
        while size:
            chunk = child.recv(min(size, _CHUNK_BYTES))
            if not chunk:
                raise ConnectionResetError("the child hung up in the middle of an object")
            size -= len(chunk)
            yield chunk


def _exactly(child: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        more = child.recv(size - len(read))
        if not more:
            raise ConnectionResetError("the child hung up in the middle of an object")
        read += more
    return read
