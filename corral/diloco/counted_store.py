"""A store that counts what goes to it and comes from it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from corral.diloco.round_store import Buffer, RoundStore, StoredObject


class CountedStore:
    """A RoundStore in front of another. Safe to use from several threads."""

    def __init__(self, store: RoundStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.bytes_up = 0
        self.bytes_down = 0

    def put(self, key: str, data: Buffer | Iterable[Buffer]) -> str:
        pieces = [data] if isinstance(data, Buffer) else list(data)
        self._sent(sum(memoryview(piece).nbytes for piece in pieces))
        return self._store.put(key, pieces)

    def create(self, key: str, data: Buffer) -> bool:
        self._sent(memoryview(data).nbytes)
        return self._store.create(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> bool:
        self._sent(memoryview(data).nbytes)
        return self._store.replace(key, data, etag)

    def get(self, key: str) -> tuple[bytes, str] | None:
        found = self._store.get(key)
        self._received(0 if found is None else len(found[0]))
        return found

    def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
        found = self._store.read_into(key, buffer, start)
        self._received(found or 0)
        return found

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def now(self) -> float:
        return self._store.now()

    def _sent(self, size: int) -> None:
        with self._lock:
            self.bytes_up += size

    def _received(self, size: int) -> None:
        with self._lock:
            self.bytes_down += size
