"""The audit chain."""

from __future__ import annotations

from corral.adapters.sql.connection import Connection
from corral.adapters.sql.rows import AUDIT
from corral.domain.audit import AuditEntry


class SqlAudit:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def last(self) -> AuditEntry | None:
        row = self._db.one("audit_last", {})
        return None if row is None else AUDIT.read(row)

    def append(self, entry: AuditEntry) -> None:
        self._db.put("audit_append", AUDIT, entry)

    def page(self, *, after: int, limit: int, target: str | None = None) -> list[AuditEntry]:
        given = {} if target is None else {"target": target}
        rows = self._db.all("audit_page", {"after": after, "limit": limit, **given})
        return [AUDIT.read(row) for row in rows]
