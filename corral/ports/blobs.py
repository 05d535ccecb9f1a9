"""Bytes by digest, and append-only segments. Rights and pins are the database's business."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from corral.domain.ids import Digest


class Upload(Protocol):
    """A partial file that one uploader owns. Calls block: run them in a thread."""

    @property
    def offset(self) -> int:
        """How many bytes are there; an upload goes on from here."""
        ...

    def write(self, data: bytes) -> None: ...

    def commit(self) -> int:
        """Check the digest, make the bytes durable, then make them visible; return their size.

        DigestMismatch removes the partial: what is there is not what was announced.
        """
        ...

    def close(self) -> None:
        """Let go; the partial stays for a later try."""
        ...


class HandedOverFile(Protocol):
    """A file that was handed over, and may still be written. Calls block: run them in a thread."""

    @property
    def digest(self) -> Digest:
        """Of what was read."""
        ...

    @property
    def size(self) -> int:
        """How much was read."""
        ...

    def read_on(self) -> bool:
        """Read what is there, or a part of it. True if that is all, nobody writes more, and it is durable."""
        ...

    def commit(self) -> None:
        """Make it visible as a blob, once it was read. StoreUnavailable if it was written to since."""
        ...

    def close(self) -> None:
        """Without a commit the file is gone."""
        ...


class BlobStore(Protocol):
    """Content-addressed blobs. Equal bytes twice are one blob. Every stored file re-hashes to its name."""

    def open_upload(self, digest: Digest, *, uploader: str, offset: int | None) -> Upload:
        """Begin or go on. `offset` None starts anew; otherwise it must be where the partial ends
        (OffsetMismatch). Two uploaders of equal bytes never share a partial."""
        ...

    def partial_size(self, digest: Digest, *, uploader: str) -> int: ...

    def put_many(self, items: Sequence[tuple[Digest, bytes]]) -> None:
        """Store many small blobs at once, all durable on return and cheaper than an upload each.

        DigestMismatch before anything is stored if one is not what it is called. After any other error
        some may be there, each of them whole.
        """
        ...

    def near(self) -> Path | None:
        """A folder of this machine for files that `take` can have; None if there is none."""
        ...

    def take(self, name: str) -> HandedOverFile:
        """A file of that folder, for good. KeyError if it is not there.

        While its writer holds a lock on it there is more to come.
        """
        ...

    def place(self, digest: Digest) -> Path | None:
        """Where on this machine the bytes can be read, and only read. KeyError if absent.

        None where that cannot be, and for those that were not hashed of late: then they are sent, and whoever
        gets them hashes them.
        """
        ...

    def has(self, digest: Digest) -> bool: ...

    def size(self, digest: Digest) -> int:
        """KeyError if absent."""
        ...

    def read(self, digest: Digest, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """KeyError if absent, at the call."""
        ...

    def verify(self, digest: Digest) -> bool:
        """Read every byte again and compare. KeyError if absent."""
        ...

    def delete(self, digest: Digest) -> None:
        """No error if absent."""
        ...

    def set_aside(self, digest: Digest) -> None:
        """Take damaged bytes out of the store but keep them for a look; the next upload brings good ones."""
        ...

    def digests(self, prefix: str) -> Iterator[Digest]:
        """Every blob whose digest begins with two hex digits `prefix`."""
        ...

    def sweep_partials(self, older_than_s: float) -> int:
        """Remove what no uploader came back to."""
        ...

    def free_bytes(self) -> int | None: ...


class SegmentStore(Protocol):
    """Append-only files whose committed length is kept in the database."""

    def append(self, key: str, offset: int, data: bytes) -> None:
        """Write at the offset, cutting what lies behind it (left by a crash), and make it durable."""
        ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """Up to `length` bytes; KeyError if the segment is absent."""
        ...

    def delete(self, key: str) -> None: ...
