"""Bytes by digest, in and out. The same calls serve a user's project and a worker's lease."""

from __future__ import annotations

import hashlib
import os
import secrets as random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from corral.client.http.transport import Content, Transport, quoted
from corral.domain.errors import (
    Conflict,
    CorralError,
    DigestMismatch,
    NotFound,
    ServerUnreachable,
    StoreUnavailable,
)
from corral.files import large
from corral.files.large import MappedFile
from corral.files.untrusted import open_regular
from corral.wire.blobs import BlobAnswer, BlobPlace, BlobQuery, HandoverRequest, StoredBlob

T = TypeVar("T")

READ_BYTES = 1 << 20
# Each mapping holds a file open, of which a process may have a thousand.
MAP_FROM = 4 << 20
# A server that makes a large file durable answers only when the disk has it.
WRITE_TIMEOUT_S = 600.0
PACK_MAX_BYTES = 8 << 20
PACK_HEADER_BYTES = 80


@dataclass(frozen=True)
class BlobSink:
    """Where blobs are sent: a project's, or those of one lease and epoch."""

    transport: Transport
    path: str
    params: Mapping[str, int]

    @classmethod
    def of_project(cls, transport: Transport, project: str) -> BlobSink:
        return cls(transport, f"/v1/projects/{quoted(project)}/blobs", {})

    @classmethod
    def of_lease(cls, transport: Transport, lease_id: str, epoch: int) -> BlobSink:
        return cls(transport, f"/v1/leases/{quoted(lease_id)}/blobs", {"epoch": epoch})

    def query(self, digests: Sequence[str]) -> BlobAnswer:
        """Which of these are missing, and where a broken upload goes on. What is there is pinned."""
        body = BlobQuery(blobs=list(digests))
        return self.transport.repeat("POST", f"{self.path}/query", BlobAnswer, body=body, params=self.params)

    def put(self, digest: str, content: Content, *, length: int, offset: int | None) -> StoredBlob:
        """One try. `length` bytes follow; `offset` None begins anew."""
        return self.transport.once(
            "PUT",
            f"{self.path}/{quoted(digest)}",
            StoredBlob,
            content=content,
            params={**self.params, "offset": offset},
            headers={"Content-Length": str(length)},
            timeout_s=WRITE_TIMEOUT_S,
        )

    def keep(self, digest: str, data: bytes) -> None:
        """One blob that is in memory, unless the server has it; tried again while the store is away."""

        def attempt() -> None:
            if digest in self.query([digest]).missing:
                self.put(digest, _pieces(data), length=len(data), offset=None)

        self.transport.patiently(attempt)

    def hand_over(
        self, parts: Sequence[bytes | memoryview] | Path, *, size: int | None = None
    ) -> StoredBlob | None:
        """Bytes, or a copy of a file, to a server on this machine, without sending them.

        A file that is still growing to its `size` (`corral.files.large`) is copied while it is written. It is
        never given away itself: whoever wrote it may still have it open, and could change what is stored.
        None if they have to be sent; then nothing was lost.
        """
        for anew in (False, True):
            folder = self.transport.near(anew=anew)
            if folder is None:
                return None
            place = folder / random.token_hex(16)
            try:
                if isinstance(parts, Path):
                    if size is None:
                        return self._copied(parts, place)
                    return self._followed(parts, place, size)
                return self._written(parts, place)
            except (FileNotFoundError, NotFound):
                # It was the folder of a server that is gone.
                continue
            except (OSError, Conflict, ServerUnreachable, StoreUnavailable):
                return None
            finally:
                with suppress(OSError):
                    place.unlink()
        return None

    def _written(self, parts: Sequence[bytes | memoryview], place: Path) -> StoredBlob:
        size = sum(len(part) for part in parts)
        with large.new_file(place) as file:
            if size < large.READ_WHILE_WRITTEN_BYTES:
                taking = None
                large.write(file, parts)
            else:
                taking = beside(lambda: self._near(place.name, size))
                large.write(file, parts, until=taking.done)
        return self._near(place.name, size) if taking is None else taking.result()

    def _copied(self, path: Path, place: Path) -> StoredBlob:
        with open_regular(path) as source, large.new_file(place) as file:
            large.copy(source, file, os.fstat(source.fileno()).st_size)
        return self._near(place.name, None)

    def _followed(self, path: Path, place: Path, size: int) -> StoredBlob:
        with open_regular(path) as source, large.new_file(place) as file:
            taking = beside(lambda: self._near(place.name, size))
            large.follow(source, file, size, until=taking.done)
        return taking.result()

    def _near(self, name: str, size: int | None) -> StoredBlob:
        return self.transport.once(
            "POST",
            f"{self.path}/near",
            StoredBlob,
            body=HandoverRequest(name=name, size=size),
            params=self.params,
            timeout_s=WRITE_TIMEOUT_S,
        )

    def pack(self, blobs: Sequence[tuple[str, bytes]]) -> list[StoredBlob]:
        """Many small blobs at once, at most PACK_MAX_BYTES with their headers."""
        body = b"".join(f"{digest}{len(data):016x}".encode() + data for digest, data in blobs)
        return self.transport.repeat(
            "POST",
            f"{self.path}/pack",
            list[StoredBlob],
            content=body,
            params=self.params,
            timeout_s=WRITE_TIMEOUT_S,
        )


def check_digest(digest: str, found: str, size: int) -> None:
    if found != digest:
        raise DigestMismatch(
            f"blob {digest} is damaged: the {size} bytes received have {found}",
            hint="Run `corral fsck` on the server.",
        )


@dataclass(frozen=True)
class BlobSource:
    """Where blobs are read from: as a user of a project, or as the holder of a lease."""

    transport: Transport
    params: Mapping[str, str | int]

    @classmethod
    def of_project(cls, transport: Transport, project: str) -> BlobSource:
        return cls(transport, {"project": project})

    @classmethod
    def of_lease(cls, transport: Transport, lease_id: str, epoch: int) -> BlobSource:
        return cls(transport, {"lease": lease_id, "epoch": epoch})

    @property
    def lease_params(self) -> Mapping[str, str | int]:
        """As whose lease an artifact is read; a user of a project says nothing."""
        return self.params if "lease" in self.params else {}

    def read(self, digest: str, received: Callable[[int], None] | None = None) -> Iterator[bytes]:
        """All bytes of a blob; a connection that breaks is taken up where it broke."""
        done, failures = 0, 0
        while True:
            try:
                for chunk in self._from(digest, done):
                    done += len(chunk)
                    failures = 0
                    if received:
                        received(len(chunk))
                    yield chunk
                return
            except (ServerUnreachable, StoreUnavailable):
                failures += 1
                if failures >= self.transport.backoff.tries:
                    raise
                self.transport.sleep(self.transport.backoff.delay_s(failures))

    def place(self, digest: str) -> Path | None:
        """Where a blob of a server on this machine can be read; None if it has to be sent."""
        if self.transport.near() is None:
            return None
        try:
            found = self.transport.get(f"/v1/blobs/{quoted(digest)}/place", BlobPlace, self.params).path
        except (ServerUnreachable, StoreUnavailable):
            return None
        return Path(found) if found is not None and os.access(found, os.R_OK) else None

    def in_place(self, digest: str) -> bytes | memoryview | None:
        """Its bytes where they lie: they were hashed when they came there, and are not hashed again.

        What is written to them is the caller's alone.
        """
        place = self.place(digest)
        try:
            if place is None:
                return None
            with place.open("rb") as file:
                if os.fstat(file.fileno()).st_size < MAP_FROM:
                    return file.read()
                return memoryview(MappedFile.of(file))
        except (OSError, ValueError):
            return None

    def copy(self, digest: str, path: Path) -> bool:
        """Copy the blob's file to `path`, which must not exist; False if it has to be sent.

        Never its own file: whoever may write to `path` could change what is stored.
        """
        place = self.place(digest)
        if place is None:
            return False
        try:
            with place.open("rb", buffering=0) as source, large.new_file(path) as file:
                left = large.copy(source, file, os.fstat(source.fileno()).st_size)
        except OSError:
            return False
        return not left

    def whole(self, digest: str) -> bytes:
        """All bytes of a blob, which are those that its name says. DigestMismatch otherwise."""
        data = b"".join(self.read(digest))
        check_digest(digest, hashlib.sha256(data).hexdigest(), len(data))
        return data

    def save(self, digest: str, path: Path) -> None:
        """Write the bytes to a new file, which must not be used after an error."""
        sha, size = hashlib.sha256(), 0
        # What is there is not written to: it may be a link that somebody else left.
        path.unlink(missing_ok=True)
        with path.open("xb") as file:
            for chunk in self.read(digest):
                sha.update(chunk)
                size += file.write(chunk)
        check_digest(digest, sha.hexdigest(), size)

    def _from(self, digest: str, start: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        path = f"/v1/blobs/{quoted(digest)}"
        with self.transport.stream("GET", path, params=self.params, headers=headers) as answer:
            if start and answer.status_code != 206:
                raise CorralError(
                    f"{digest} cannot be resumed at byte {start}: the server answered {answer.status_code}",
                    hint="Download it again; a proxy may have removed the Range header.",
                )
            yield from answer.iter_raw(READ_BYTES)


def beside(work: Callable[[], T]) -> Future[T]:
    """Run the work in a daemon thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is for whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="corral-beside", daemon=True).start()
    return future


def _pieces(data: bytes) -> Iterator[bytes]:
    """In pieces: a socket given all of it would copy the rest after every packet."""
    view = memoryview(data)
    for start in range(0, len(view), READ_BYTES):
        yield bytes(view[start : start + READ_BYTES])
