"""Quotas and what was used of them."""

from __future__ import annotations

from corral.domain.quotas import Quota, UsageHours
from corral.store.connection import Connection
from corral.store.rows import HOURS, QUOTA


class SqlQuotas:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def get(self, project: str) -> Quota | None:
        row = self._db.one("quota_get", {"project": project})
        return None if row is None else QUOTA.read(row)

    def lock(self, project: str) -> Quota | None:
        """Like `get`, and no other transaction that locks it goes on until this one ends."""
        row = self._db.one("quota_lock", {"project": project})
        return None if row is None else QUOTA.read(row)

    def try_lock(self, project: str) -> Quota | None:
        """Like `lock`, but None as well if another transaction holds it: nobody waits in a circle."""
        row = self._db.one("quota_try_lock", {"project": project})
        return None if row is None else QUOTA.read(row)

    def all(self) -> list[Quota]:
        return [QUOTA.read(row) for row in self._db.all("quota_all", {})]

    def put(self, quota: Quota) -> None:
        """Insert or replace."""
        self._db.put("quota_put", QUOTA, quota)

    def delete(self, project: str) -> bool:
        return self._db.run("quota_delete", {"project": project}) > 0

    def add_hours(self, used: UsageHours) -> None:
        """Add to what the project used in that month."""
        self._add(used)

    def hours(self, project: str, month: str) -> UsageHours | None:
        row = self._db.one("hours_get", {"project": project, "month": month})
        return None if row is None else HOURS.read(row)

    def _add(self, used: UsageHours) -> None:
        self._db.put("hours_add", HOURS, used)

    def hours_page(self, after: tuple[str, str] | None, limit: int) -> list[UsageHours]:
        project, month = after or ("", "")
        rows = self._db.all("hours_page", {"project": project, "month": month, "limit": limit})
        return [HOURS.read(row) for row in rows]


class LateHours(SqlQuotas):
    """Hours are added at the end of a transaction, in the order of their keys.

    A batch of outcomes adds to the rows of several projects, and another one to the same rows in another
    order: written as they come, each would wait for the other.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._late: dict[tuple[str, str], UsageHours] = {}

    def add_hours(self, used: UsageHours) -> None:
        self._late[used.project, used.month] = _sum(used, self._late.get((used.project, used.month)))

    def hours(self, project: str, month: str) -> UsageHours | None:
        kept, late = super().hours(project, month), self._late.get((project, month))
        return kept if late is None else _sum(late, kept)

    def write(self) -> None:
        for key in sorted(self._late):
            self._add(self._late[key])
        self._late.clear()

    def forget(self) -> None:
        self._late.clear()


def _sum(one: UsageHours, other: UsageHours | None) -> UsageHours:
    if other is None:
        return one
    return one._replace(slot_s=one.slot_s + other.slot_s, gpu_s=one.gpu_s + other.gpu_s)
