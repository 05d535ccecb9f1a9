"""Who did what to anything that is not a run; what happens to runs are events of theirs."""

from __future__ import annotations

from corral.domain.audit import AuditEntry, chained
from corral.domain.canonical import canonical
from corral.store.transaction import Tx


def note(tx: Tx, action: str, target: str, *, actor: str, origin: str, now: float, **data: object) -> None:
    """Append to the chain, in the transaction that does it. `data` never holds a secret."""
    last = tx.audit.last()
    entry = AuditEntry(
        (last.n if last else 0) + 1, now, actor, origin, action, target, canonical(data), hash=""
    )
    tx.audit.append(entry._replace(hash=chained(last.hash if last else "", entry)))
