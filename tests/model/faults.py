"""A store that can be told to fail at a chosen write: refuse, roll back, or die with the whole server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, TypeVar

from corral.domain.errors import StoreUnavailable
from corral.store.store import Store
from corral.store.transaction import Tx

T = TypeVar("T")


class Kind(StrEnum):
    # The database is away: the unit never runs.
    REFUSE = "refuse"
    # The unit ran, then its commit failed: a full disk.
    ROLLBACK = "rollback"
    DIE_BEFORE_COMMIT = "die before the commit"
    DIE_AFTER_COMMIT = "die after the commit, before the reply"


class ServerDied(BaseException):
    """Not an Exception: no handler of the server may turn a `kill -9` into an answer."""


class _Cut(Exception):
    """Rolls a unit back from within."""


@dataclass
class Fault:
    kind: Kind
    skip: int


class FaultyStore:
    """`fault` strikes once, at the write after `skip` others."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.alone = inner.alone
        self.fault: Fault | None = None

    async def write(self, unit: Callable[[Tx], T]) -> T:
        kind = self._due()
        if kind is None:
            return await self.inner.write(unit)
        if kind is Kind.REFUSE:
            raise StoreUnavailable("refused by the test")
        if kind is Kind.DIE_AFTER_COMMIT:
            await self.inner.write(unit)
            raise ServerDied
        try:
            await self.inner.write(lambda tx: _cut(unit, tx))
        except _Cut:
            if kind is Kind.ROLLBACK:
                raise StoreUnavailable("rolled back by the test") from None
            raise ServerDied from None
        raise AssertionError("a unit that raised was committed")

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        if self.fault is None:
            return await self.inner.write_each(units)
        answers: list[T | Exception] = []
        for unit in units:
            try:
                answers.append(await self.write(unit))
            except Exception as error:  # noqa: BLE001 - it is the answer of its own unit.
                answers.append(error)
        return answers

    def _due(self) -> Kind | None:
        if self.fault is None:
            return None
        if self.fault.skip > 0:
            self.fault.skip -= 1
            return None
        kind, self.fault = self.fault.kind, None
        return kind

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
        return await self.inner.lead(loop)

    async def close(self) -> None:
        await self.inner.close()


def _cut(unit: Callable[[Tx], object], tx: Tx) -> NoReturn:
    unit(tx)
    raise _Cut
