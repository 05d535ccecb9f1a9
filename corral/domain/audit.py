"""Who did what, when, to anything that is not a run: a chain in which no row can be changed unseen."""

from __future__ import annotations

from typing import NamedTuple


class AuditEntry(NamedTuple):
    """`origin` is the address that the call came from; `hash` covers this row and the hash before it."""

    n: int
    at: float
    actor: str
    origin: str
    action: str
    target: str
    data: str
    hash: str
