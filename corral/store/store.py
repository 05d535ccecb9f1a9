"""Where the rules keep their records: one Protocol, kept on SQLite and on Postgres.

Use cases are plain functions over a `Tx`; the store decides when to commit.
`Store.write` returns after the commit is durable, or raises and nothing of the unit is kept.
A unit may run more than once (lost races on Postgres), so it touches nothing but its `Tx`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from corral.store.transaction import Tx

T = TypeVar("T")


class Store(Protocol):
    @property
    def alone(self) -> bool:
        """Whether no other server writes to it."""
        ...

    async def write(self, unit: Callable[[Tx], T], *, patient: bool = False) -> T:
        """Run the unit; return after its commit is durable. StoreUnavailable if it cannot be now.

        A commit of `patient` ones alone may wait some milliseconds for others to share it with.
        """
        ...

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        """Like `write` for each of them, in order and with as few commits as it takes. An error is the
        answer to its own unit, and harms no other."""
        ...

    async def read(self, unit: Callable[[Tx], T]) -> T:
        """Run the unit on one consistent snapshot; it must not write and must end within a second."""
        ...

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(topic, key)` in the event loop for what commits announced. May repeat or,
        after a lost connection, miss: listeners treat it as a hint."""
        ...

    async def lead(self, loop: str) -> bool:
        """Whether this server may run the loop now; at most one server gets True at a time."""
        ...

    async def close(self) -> None: ...
