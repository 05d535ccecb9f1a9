"""Who did what to anything that is not a run; what happens to a run is an event of its own."""

from __future__ import annotations

from typing import NamedTuple

from corral.domain.audit import AuditEntry, chained
from corral.domain.canonical import canonical
from corral.store.transaction import Tx


class Author(NamedTuple):
    """Who does something, from which address and when."""

    actor: str
    origin: str
    now: float


def by_corral(now: float) -> Author:
    return Author("corral", "", now)


def note(tx: Tx, action: str, target: str, by: Author, **data: object) -> None:
    """Append to the chain, in the transaction that does it. `data` never holds a secret."""
    last = tx.audit.last()
    entry = AuditEntry(
        (last.n if last else 0) + 1, by.now, by.actor, by.origin, action, target, canonical(data), ""
    )
    tx.audit.append(entry._replace(hash=chained(last.hash if last else "", entry)))
