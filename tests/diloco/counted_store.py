"""A store that counts what goes through it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from corral.diloco.round_store import Buffer, RoundStore, StoredObject

# What a bucket's client asks for each call: a part of an object by its size first, the time by an object.
PUTS = {"put": 1, "create": 1, "replace": 1, "list": 1, "now": 1}
GETS = {"get": 1, "read_into": 2, "now": 1}


class CountedStore:
    """Passes everything on. `up` and `down` are bytes of payloads and state, `records` those of all else."""

    def __init__(self, inner: RoundStore) -> None:
        self.inner, self.calls = inner, Counter[str]()
        self.up = self.down = self.records = 0
        self._lock = threading.Lock()

    def clear(self) -> None:
        self.up = self.down = self.records = 0
        self.calls.clear()

    @property
    def puts(self) -> int:
        return sum(times * self.calls[name] for name, times in PUTS.items())

    @property
    def gets(self) -> int:
        return sum(times * self.calls[name] for name, times in GETS.items())

    def _count(self, call: str, *, up: int = 0, down: int = 0, records: int = 0) -> None:
        with self._lock:
            self.calls[call] += 1
            self.up, self.down, self.records = self.up + up, self.down + down, self.records + records

    def put(self, key: str, data: Buffer | Iterable[Buffer]) -> str:
        pieces = [data] if isinstance(data, Buffer) else list(data)
        self._count("put", up=sum(len(memoryview(piece).cast("B")) for piece in pieces))
        return self.inner.put(key, pieces)

    def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
        self._count("read_into", down=len(buffer))
        return self.inner.read_into(key, buffer, start)

    def create(self, key: str, data: Buffer) -> bool:
        self._count("create", records=len(data))
        return self.inner.create(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> bool:
        self._count("replace", records=len(data))
        return self.inner.replace(key, data, etag)

    def get(self, key: str) -> tuple[bytes, str] | None:
        found = self.inner.get(key)
        self._count("get", records=0 if found is None else len(found[0]))
        return found

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        self._count("list")
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        # Free wherever it is billed.
        self.inner.delete(key)

    def now(self) -> float:
        self._count("now")
        return self.inner.now()
