"""Bytes by digest, and append-only segments. Rights and pins are kept in the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from corral.domain.ids import Digest


class Upload(Protocol):
    """A partial file that one uploader owns. Calls block: run them in a thread."""

    @property
    def offset(self) -> int:
        """How many bytes are there; the upload continues from here."""
        ...

    def write(self, data: bytes) -> None: ...

    def commit(self) -> int:
        """Check the digest, make the bytes durable, then make them visible; return their size.

        DigestMismatch, which removes the partial, if the bytes are not the announced ones.
        """
        ...

    def close(self) -> None:
        """End this try; the partial stays for a later one."""
        ...


class HandedOverFile(Protocol):
    """A file that a process of this machine handed over, and may still be writing. Calls block: run them in a
    thread."""

    @property
    def digest(self) -> Digest:
        """The digest of the bytes read so far."""
        ...

    @property
    def size(self) -> int:
        """The number of bytes read so far."""
        ...

    def read_on(self) -> bool:
        """Read what is there, or a part of it. True once the file is read, complete and durable."""
        ...

    def commit(self) -> None:
        """Make the file visible as a blob after it was read. StoreUnavailable if it was written to since."""
        ...

    def close(self) -> None:
        """Without a commit this deletes the file."""
        ...


class BlobStore(Protocol):
    """Content-addressed blobs. Equal bytes twice are one blob. Every stored file re-hashes to its name."""

    def open_upload(self, digest: Digest, *, uploader: str, offset: int | None) -> Upload:
        """Begin an upload, or continue one. `offset` None starts anew; otherwise it must be where the partial
        ends (OffsetMismatch). Two uploaders of equal bytes never share a partial."""
        ...

    def partial_size(self, digest: Digest, *, uploader: str) -> int: ...

    def put_many(self, items: Sequence[tuple[Digest, bytes]]) -> None:
        """Store many small blobs at once, all durable on return and cheaper than an upload each.

        DigestMismatch, and nothing is stored, if the bytes of one do not have its digest. After any other
        error some blobs may be stored, each of them whole.
        """
        ...

    def near(self) -> Path | None:
        """The folder of this machine from which `take` takes files; None if there is none."""
        ...

    def take(self, name: str) -> HandedOverFile:
        """Take a file out of that folder. KeyError if it is not there.

        The file is incomplete while its writer holds a lock on it.
        """
        ...

    def place(self, digest: Digest) -> Path | None:
        """Where on this machine the bytes can be read, and only read. KeyError if absent.

        None if there is no such place, or the bytes were not hashed lately: then they are sent, and the
        receiver hashes them.
        """
        ...

    def has(self, digest: Digest) -> bool: ...

    def lacking(self, digests: Sequence[Digest]) -> list[Digest]:
        """Those of them that are not there, in less time than to ask for each."""
        ...

    def size(self, digest: Digest) -> int:
        """KeyError if absent."""
        ...

    def read(self, digest: Digest, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """KeyError if absent, at the call and not at the first chunk."""
        ...

    def verify(self, digest: Digest) -> bool:
        """Whether every byte still matches the digest. KeyError if absent."""
        ...

    def delete(self, digest: Digest) -> None:
        """No error if absent."""
        ...

    def set_aside(self, digest: Digest) -> None:
        """Move damaged bytes out of the store but keep them for inspection; an upload then replaces them."""
        ...

    def digests(self, prefix: str) -> Iterator[Digest]:
        """Every blob whose digest begins with two hex digits `prefix`."""
        ...

    def sweep_partials(self, older_than_s: float) -> int:
        """Remove the partials to which no uploader came back; return how many."""
        ...

    def free_bytes(self) -> int | None: ...


class SegmentStore(Protocol):
    """Append-only files whose committed length is kept in the database."""

    def append(self, key: str, offset: int, data: bytes) -> None:
        """Write at the offset, cut off what a crash left behind it, and make the bytes durable."""
        ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """Up to `length` bytes; KeyError if the segment is absent."""
        ...

    def delete(self, key: str) -> None: ...
