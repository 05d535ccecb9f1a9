"""Where the audit chain is kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.audit import EVERYTHING, AuditEntry, AuditFilter


class Audit(Protocol):
    def last(self) -> AuditEntry | None:
        """The newest; no other transaction appends until this one ends."""
        ...

    def append(self, entry: AuditEntry) -> None: ...

    def after(self, n: int, limit: int, where: AuditFilter = EVERYTHING) -> list[AuditEntry]:
        """What follows entry `n`, in order."""
        ...

    def before(self, n: int, limit: int, where: AuditFilter = EVERYTHING) -> list[AuditEntry]:
        """What precedes entry `n`, the newest first."""
        ...
