"""Quotas of projects, and what projects used."""

from __future__ import annotations

from corral.domain.quotas import Quota, UsageHours
from corral.store.rows import HOURS, QUOTA
from corral.store.table import Connection, Table


class SqlQuotas(Table):
    def get(self, project: str) -> Quota | None:
        return self._one(QUOTA, "quota_get", project=project)

    def lock(self, project: str) -> Quota | None:
        """Like `get`, and no other transaction locks it until this one ends."""
        return self._one(QUOTA, "quota_lock", project=project)

    def try_lock(self, project: str) -> Quota | None:
        """Like `lock`, but None as well if another transaction holds it."""
        return self._one(QUOTA, "quota_try_lock", project=project)

    def all(self) -> list[Quota]:
        return self._all(QUOTA, "quota_all")

    def put(self, quota: Quota) -> None:
        """Insert or replace."""
        self._db.put("quota_put", QUOTA, quota)

    def delete(self, project: str) -> bool:
        return self._changed("quota_delete", project=project)

    def add_hours(self, used: UsageHours) -> None:
        """Add to what the project used in that month."""
        self._db.put("hours_add", HOURS, used)

    def hours(self, project: str, month: str) -> UsageHours | None:
        return self._one(HOURS, "hours_get", project=project, month=month)

    def hours_page(self, after: tuple[str, str] | None, limit: int) -> list[UsageHours]:
        project, month = after or ("", "")
        return self._all(HOURS, "hours_page", project=project, month=month, limit=limit)

    def usage(self) -> list[tuple[str, float, float]]:
        """(project, seconds used, as of when) for fair share."""
        return [(row[0], row[1], row[2]) for row in self._db.all("usage_all", {})]

    def put_usage(self, project: str, used_s: float, at: float) -> None:
        self._tell("usage_put", project=project, used_s=used_s, at=at)


class LateHours(SqlQuotas):
    """Adds hours at the end of the transaction, in the order of their keys.

    Two batches of outcomes may add to the same projects in different orders: if each wrote as it went,
    they would wait for each other.
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
            super().add_hours(self._late[key])
        self._late.clear()

    def forget(self) -> None:
        self._late.clear()


def _sum(one: UsageHours, other: UsageHours | None) -> UsageHours:
    if other is None:
        return one
    return one._replace(slot_s=one.slot_s + other.slot_s, gpu_s=one.gpu_s + other.gpu_s)
