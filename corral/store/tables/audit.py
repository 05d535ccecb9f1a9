"""The audit chain."""

from __future__ import annotations

from corral.domain.audit import EVERYTHING, AuditEntry, AuditFilter
from corral.store.rows import AUDIT
from corral.store.schema import lock_key
from corral.store.table import Table, given

_LOCK = lock_key("audit")


class SqlAudit(Table):
    def last(self) -> AuditEntry | None:
        """The newest entry; no other transaction appends until this one ends."""
        # In a statement of its own: the next one then sees what was appended while this one waited.
        self._db.one("audit_lock", {"key": _LOCK})
        return self._one(AUDIT, "audit_last")

    def append(self, entry: AuditEntry) -> None:
        self._db.put("audit_append", AUDIT, entry)

    def after(self, n: int, limit: int, where: AuditFilter = EVERYTHING) -> list[AuditEntry]:
        """The entries after entry `n`, in order."""
        return self._page("audit_after", n, limit, where)

    def before(self, n: int, limit: int, where: AuditFilter = EVERYTHING) -> list[AuditEntry]:
        """The entries before entry `n`, the newest first."""
        return self._page("audit_before", n, limit, where)

    def _page(self, statement: str, n: int, limit: int, where: AuditFilter) -> list[AuditEntry]:
        family = None if where.action is None else f"{where.action}."
        return self._all(AUDIT, statement, n=n, limit=limit, **given(family=family, **where._asdict()))
