"""The store that the core and the server use; `sqlite` and `postgres` implement it.

Use cases are plain functions over a `Tx`; the store decides when to commit. A unit may run more than once
(lost races on Postgres), so it touches nothing but its `Tx`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from corral.store.transaction import Tx

T = TypeVar("T")


class Store(Protocol):
    @property
    def alone(self) -> bool:
        """Whether this is the only server that writes to the database."""
        ...

    @property
    def damaged(self) -> str | None:
        """What was seen of damage since the start; None while nothing was."""
        ...

    async def write(self, unit: Callable[[Tx], T]) -> T:
        """Run the unit and return after its commit is durable, or raise and keep nothing of it.

        StoreUnavailable if the database cannot be written now.
        """
        ...

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        """Like `write` for each unit, in order and with as few commits as possible.

        A unit that fails has its error in place of a result, and does not affect the others.
        """
        ...

    async def read(self, unit: Callable[[Tx], T]) -> T:
        """Run the unit on one consistent snapshot; it must not write and must end within a second."""
        ...

    def size_bytes(self) -> int | None:
        """How much space the database takes; None if that is not known."""
        ...

    async def damage(self) -> list[str]:
        """What the database's own check finds wrong, each in a sentence; it may take long."""
        ...

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(topic, key)` in the event loop for each announcement of a commit.

        Announcements may be repeated and, after a lost connection, missed: they are only hints.
        """
        ...

    async def lead(self, loop: str) -> bool:
        """Whether this server may run the loop now; at most one server may at a time."""
        ...

    async def close(self) -> None: ...


async def write_together(
    store: Store, lock: Callable[[Tx], None], units: Sequence[Callable[[Tx], T]]
) -> list[T | Exception]:
    """Write units that share a commit and lock a run each.

    `lock` locks all their runs first, in one order: another transaction may lock several of them too.
    """
    if len(units) < 2 or store.alone:
        return await store.write_each(units)
    first, *others = units
    return await store.write_each([partial(_after, lock, first), *others])


def _after(lock: Callable[[Tx], None], unit: Callable[[Tx], T], tx: Tx) -> T:
    lock(tx)
    return unit(tx)
