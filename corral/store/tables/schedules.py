"""Schedules."""

from __future__ import annotations

from corral.domain.ids import RunId, ScheduleId
from corral.domain.schedules import Schedule
from corral.store.connection import Connection
from corral.store.rows import SCHEDULE


class SqlSchedules:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, schedule: Schedule) -> None:
        self._db.put("schedule_insert", SCHEDULE, schedule)

    def get(self, schedule_id: ScheduleId) -> Schedule | None:
        row = self._db.one("schedule_get", {"id": schedule_id})
        return None if row is None else SCHEDULE.read(row)

    def lock(self, schedule_id: ScheduleId) -> Schedule | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        row = self._db.one("schedule_lock", {"id": schedule_id})
        return None if row is None else SCHEDULE.read(row)

    def by_name(self, project: str, name: str) -> Schedule | None:
        row = self._db.one("schedule_by_name", {"project": project, "name": name})
        return None if row is None else SCHEDULE.read(row)

    def save(self, schedule: Schedule) -> None:
        self._db.put("schedule_save", SCHEDULE, schedule)

    def find(self, text: str, project: str | None, limit: int) -> list[ScheduleId]:
        """Those with this id or name."""
        params: dict[str, object] = {"text": text, "limit": limit}
        if project is not None:
            params["project"] = project
        return [ScheduleId(row[0]) for row in self._db.all("schedule_find", params)]

    def unfinished(self, schedule_id: ScheduleId, limit: int) -> list[RunId]:
        """Its runs that have not ended."""
        rows = self._db.all("schedule_unfinished", {"schedule_id": schedule_id, "limit": limit})
        return [RunId(row[0]) for row in rows]

    def ahead(self, now: float, limit: int) -> list[ScheduleId]:
        """Those whose next time was worked out after `now`: the clock was set back since."""
        rows = self._db.all("schedule_ahead", {"now": now, "limit": limit})
        return [ScheduleId(row[0]) for row in rows]

    def page(self, project: str | None, after: ScheduleId | None, limit: int) -> list[Schedule]:
        params: dict[str, object] = {"after": after or "", "limit": limit}
        if project is not None:
            params["project"] = project
        rows = self._db.all("schedule_page", params)
        return [SCHEDULE.read(row) for row in rows]

    def due(self, now: float, limit: int) -> list[ScheduleId]:
        rows = self._db.all("schedule_due", {"now": now, "limit": limit})
        return [ScheduleId(row[0]) for row in rows]

    def delete(self, schedule_id: ScheduleId) -> bool:
        return self._db.run("schedule_delete", {"id": schedule_id}) > 0
