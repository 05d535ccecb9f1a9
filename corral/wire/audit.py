"""Who did what."""

from __future__ import annotations

from pydantic import JsonValue as Json

from corral.domain.audit import AuditEntry
from corral.domain.canonical import canonical
from corral.wire.base import Answer


class AuditView(Answer):
    """One entry of the chain; `hash` is the SHA-256 over the hash before it and this entry."""

    n: int
    at: float
    actor: str
    origin: str
    action: str
    target: str
    data: dict[str, Json] = {}
    hash: str

    def entry(self) -> AuditEntry:
        """As it was hashed."""
        return AuditEntry(**{**vars(self), "data": canonical(self.data)})


class AuditPage(Answer):
    items: list[AuditView]
    next: int | None = None
