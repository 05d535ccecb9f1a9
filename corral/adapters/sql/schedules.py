"""Schedules."""

from __future__ import annotations

from corral.adapters.sql.connection import Connection
from corral.adapters.sql.rows import SCHEDULE
from corral.domain.ids import ScheduleId
from corral.domain.schedule import Schedule


class SqlSchedules:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, schedule: Schedule) -> None:
        self._db.put("schedule_insert", SCHEDULE, schedule)

    def get(self, schedule_id: ScheduleId) -> Schedule | None:
        row = self._db.one("schedule_get", {"id": schedule_id})
        return None if row is None else SCHEDULE.read(row)

    def lock(self, schedule_id: ScheduleId) -> Schedule | None:
        row = self._db.one("schedule_lock", {"id": schedule_id})
        return None if row is None else SCHEDULE.read(row)

    def by_name(self, project: str, name: str) -> Schedule | None:
        row = self._db.one("schedule_by_name", {"project": project, "name": name})
        return None if row is None else SCHEDULE.read(row)

    def save(self, schedule: Schedule) -> None:
        self._db.put("schedule_save", SCHEDULE, schedule)

    def page(self, after: ScheduleId | None, limit: int) -> list[Schedule]:
        rows = self._db.all("schedule_page", {"after": after or "", "limit": limit})
        return [SCHEDULE.read(row) for row in rows]

    def due(self, now: float, limit: int) -> list[ScheduleId]:
        rows = self._db.all("schedule_due", {"now": now, "limit": limit})
        return [ScheduleId(row[0]) for row in rows]

    def delete(self, schedule_id: ScheduleId) -> bool:
        return self._db.run("schedule_delete", {"id": schedule_id}) > 0
