"""Blobs as objects: `blobs/ab/<sha256>` below the bucket's URL; what is on its way there lies in a folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from corral.adapters.blobs.upload import NotPublished
from corral.adapters.blobs.uploads import UploadFolder, check_digests, check_prefix
from corral.domain.errors import StoreUnavailable
from corral.domain.ids import Digest, digest, is_digest
from corral.files.bucket import Bucket, ObjectReading
from corral.files.bucket_errors import BucketError

T = TypeVar("T")
R = TypeVar("R")

_CHUNK_BYTES = 1 << 20
# A store far away answers late, and many at a time.
_AT_ONCE = 16
_DAMAGED = "Run `corral fsck`; upload the blob again to replace it."


class BucketBlobs(UploadFolder):
    """A BlobStore in a bucket (S3, and stores that speak it), safe for several threads and processes.

    An upload lies in a folder of this machine until it is whole and has its digest; only then is it sent on,
    so no object ever has other bytes than its name says. Sending it again replaces an object: damage is
    healed.
    """

    def __init__(
        self, bucket: Bucket, root: Path, *, min_free_bytes: int = 0, hand_over: bool = True
    ) -> None:
        super().__init__(root, min_free_bytes=min_free_bytes, hand_over=hand_over)
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(_AT_ONCE, "corral-bucket")

    def _publish(self, digest: Digest, partial: Path) -> None:
        try:
            self._bucket.put(_key(digest), partial)
        except BucketError as error:
            raise NotPublished(error.message, hint=error.hint) from error
        partial.unlink()

    def put_many(self, items: Sequence[tuple[Digest, bytes]]) -> None:
        wanted = dict(items)
        check_digests(wanted)

        def put(item: tuple[Digest, bytes]) -> None:
            self._bucket.put(_key(item[0]), item[1])

        with _translated():
            self._each(put, list(wanted.items()))

    def place(self, digest: Digest) -> Path | None:
        if not self.has(digest):
            raise KeyError(digest)
        return None

    def has(self, digest: Digest) -> bool:
        with _translated():
            return self._bucket.head(_key(digest)) is not None

    def lacking(self, digests: Sequence[Digest]) -> list[Digest]:
        there = self._each(self.has, digests)
        return [digest for digest, found in zip(digests, there, strict=True) if not found]

    def size(self, digest: Digest) -> int:
        with _translated():
            found = self._bucket.head(_key(digest))
        if found is None:
            raise KeyError(digest)
        return found.size

    def read(self, digest: Digest, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        size = self.size(digest) if start or length is not None else None
        end = start + length if length is not None else None
        if size is not None:
            if max(start, end or 0) > size:
                raise StoreUnavailable(
                    f"blob {digest} has {size} bytes, {max(start, end or 0)} were expected", hint=_DAMAGED
                )
            if start in (size, end):
                # No store gives an empty part of an object.
                return iter(())
        with _translated():
            reading = self._bucket.read(_key(digest), start=start, length=length)
        if reading is None:
            raise KeyError(digest)
        return _pieces(reading)

    def verify(self, digest: Digest) -> bool:
        sha = hashlib.sha256()
        for piece in self.read(digest):
            sha.update(piece)
        return sha.hexdigest() == digest

    def delete(self, digest: Digest) -> None:
        with _translated():
            self._bucket.delete(_key(digest))

    def set_aside(self, digest: Digest) -> None:
        with _translated():
            reading = self._bucket.read(_key(digest))
            if reading is not None:
                # Not the store's own copy: S3 copies nothing above 5 GiB.
                self._bucket.put(f"damaged/{digest}.{time.time_ns()}", reading)
                self._bucket.delete(_key(digest))

    def digests(self, prefix: str) -> Iterator[Digest]:
        check_prefix(prefix)
        with _translated():
            names = [one.key.rpartition("/")[2] for one in self._bucket.list(f"blobs/{prefix}")]
        return (Digest(name) for name in names if is_digest(name))

    def _each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return list(self._pool.map(work, items))


def _key(name: Digest) -> str:
    checked = digest(name)
    return f"blobs/{checked[:2]}/{checked}"


def _pieces(reading: ObjectReading) -> Iterator[bytes]:
    with _translated():
        for piece in reading:
            for at in range(0, len(piece), _CHUNK_BYTES):
                yield piece[at : at + _CHUNK_BYTES]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BucketError as error:
        raise StoreUnavailable(error.message, hint=error.hint) from error
