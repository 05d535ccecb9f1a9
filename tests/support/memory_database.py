"""A store in memory that counts, delays or refuses: for tests of the core."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from corral.domain.errors import StoreUnavailable
from corral.store.sqlite.store import MEMORY, SqliteStore
from corral.store.transaction import Tx

T = TypeVar("T")


class MemoryDatabase:
    """SQLite in memory behind an event loop of its own; `on_write` is called before each unit."""

    alone = True

    def __init__(self) -> None:
        self.inner = SqliteStore(MEMORY)
        # From 3.13 on Python complains of a connection that nobody closed.
        weakref.finalize(self, self.inner._raw.close)
        self.on_write: Callable[[], None] | None = None
        self._runner = asyncio.Runner()

    async def write(self, unit: Callable[[Tx], T]) -> T:
        if self.on_write is not None:
            self.on_write()
        return await self.inner.write(unit)

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        return await self.inner.write_each(units)

    async def read(self, unit: Callable[[Tx], T]) -> T:
        return await self.inner.read(unit)

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        self.inner.subscribe(listener)

    @property
    def damaged(self) -> str | None:
        return self.inner.damaged

    def size_bytes(self) -> int | None:
        return self.inner.size_bytes()

    async def damage(self) -> list[str]:
        return await self.inner.damage()

    async def lead(self, loop: str) -> bool:
        return True

    async def close(self) -> None:
        await self.inner.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def now_write(self, unit: Callable[[Tx], T]) -> T:
        return self.do(self.inner.write(unit))

    def now_read(self, unit: Callable[[Tx], T]) -> T:
        return self.do(self.inner.read(unit))

    def end(self) -> None:
        self.do(self.close())
        self._runner.close()


def refuse() -> None:
    raise StoreUnavailable("the database is away")


class CountingTx(Tx):
    """Counts the calls of each part of a transaction, by name: `runs.ready`."""

    def __init__(self, tx: Tx) -> None:
        self.counted: Counter[str] = Counter()
        for name, part in vars(tx).items():
            setattr(self, name, part if name.startswith("_") else _CountingPart(part, name, self.counted))


class _CountingPart:
    def __init__(self, part: Any, name: str, calls: Counter[str]) -> None:
        self._part, self._name, self._calls = part, name, calls

    def __getattr__(self, method: str) -> Any:
        self._calls[f"{self._name}.{method}"] += 1
        return getattr(self._part, method)
