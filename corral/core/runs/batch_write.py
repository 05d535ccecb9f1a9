"""Writing several units that share a commit, each of which locks a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from corral.store.store import Store
from corral.store.transaction import Tx

T = TypeVar("T")


async def write_together(
    store: Store, lock: Callable[[Tx], None], units: Sequence[Callable[[Tx], T]]
) -> list[T | Exception]:
    """`lock` locks all their runs first, in one order: another transaction may lock several of them too."""
    if len(units) < 2 or store.alone:
        return await store.write_each(units)
    first, *others = units
    return await store.write_each([partial(_after, lock, first), *others])


def _after(lock: Callable[[Tx], None], unit: Callable[[Tx], T], tx: Tx) -> T:
    lock(tx)
    return unit(tx)
