"""Where the audit chain is kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.audit import AuditEntry


class Audit(Protocol):
    def last(self) -> AuditEntry | None:
        """The newest; no other transaction appends until this one ends."""
        ...

    def append(self, entry: AuditEntry) -> None: ...

    def page(self, *, after: int, limit: int, target: str | None = None) -> list[AuditEntry]: ...
