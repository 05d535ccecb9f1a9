"""Rounds in a bucket: S3 (conditional writes), and Google's and Azure's through the same client."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from corral.diloco.round_store import (
    Buffer,
    StoredObject,
    StoreError,
    StoreRefused,
    checked_key,
    checked_prefix,
)
from corral.files.bucket import Bucket
from corral.files.bucket_errors import BucketError, BucketRefused

_OWN = ".corral"


class BucketStore:
    """A RoundStore below one URL."""

    def __init__(self, url: str, *, endpoint: str | None = None, patience_s: float = 60.0) -> None:
        with _told():
            self._bucket = Bucket(url, endpoint=endpoint, patience_s=patience_s)

    def put(self, key: str, data: Buffer | Iterable[Buffer]) -> str:
        with _told():
            return self._bucket.put(checked_key(key), data)

    def create(self, key: str, data: Buffer) -> bool:
        with _told():
            return self._bucket.create(checked_key(key), data)

    def replace(self, key: str, data: Buffer, etag: str) -> bool:
        with _told():
            return self._bucket.replace(checked_key(key), data, etag) is not None

    def get(self, key: str) -> tuple[bytes, str] | None:
        with _told():
            reading = self._bucket.read(checked_key(key))
            return None if reading is None else (b"".join(reading), reading.info.etag)

    def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
        view = memoryview(buffer).cast("B")
        with _told():
            info = self._bucket.head(checked_key(key))
            if info is None:
                return None
            wanted = min(len(view), info.size - start)
            if wanted <= 0:
                return 0
            reading = self._bucket.read(key, start=start, length=wanted)
            if reading is None:
                return None
            at = 0
            for piece in reading:
                view[at : at + len(piece)] = piece
                at += len(piece)
            return at

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        with _told():
            for one in self._bucket.list(checked_prefix(prefix)):
                if not one.key.startswith(_OWN):
                    yield StoredObject(one.key, one.size, one.modified)

    def delete(self, key: str) -> None:
        with _told():
            self._bucket.delete(checked_key(key))

    def now(self) -> float:
        key = f"{_OWN}/now-{secrets.token_hex(8)}"
        with _told():
            self._bucket.put(key, b"")
            info = self._bucket.head(key)
            self._bucket.delete(key)
        if info is None:
            raise StoreError(f"{self._bucket.url} lost an object that was just written to it")
        return info.modified


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BucketRefused as error:
        raise StoreRefused(error.message, hint=error.hint) from error
    except BucketError as error:
        raise StoreError(error.message, hint=error.hint) from error
