"""The audit chain."""

from __future__ import annotations

from corral.domain.audit import EVERYTHING, AuditEntry, AuditFilter
from corral.store.connection import Connection
from corral.store.rows import AUDIT
from corral.store.schema import lock_key

_LOCK = lock_key("audit")


class SqlAudit:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def last(self) -> AuditEntry | None:
        """The newest; no other transaction appends until this one ends."""
        # In a statement of its own: the next one then sees what was appended while this one waited.
        self._db.one("audit_lock", {"key": _LOCK})
        row = self._db.one("audit_last", {})
        return None if row is None else AUDIT.read(row)

    def append(self, entry: AuditEntry) -> None:
        self._db.put("audit_append", AUDIT, entry)

    def after(self, n: int, limit: int, where: AuditFilter = EVERYTHING) -> list[AuditEntry]:
        """What follows entry `n`, in order."""
        return self._page("audit_after", n, limit, where)

    def before(self, n: int, limit: int, where: AuditFilter = EVERYTHING) -> list[AuditEntry]:
        """What precedes entry `n`, the newest first."""
        return self._page("audit_before", n, limit, where)

    def _page(self, statement: str, n: int, limit: int, where: AuditFilter) -> list[AuditEntry]:
        given = {name: value for name, value in where._asdict().items() if value is not None}
        if where.action is not None:
            given["family"] = f"{where.action}."
        rows = self._db.all(statement, {"n": n, "limit": limit, **given})
        return [AUDIT.read(row) for row in rows]
