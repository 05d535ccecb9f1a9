"""Schedules."""

from __future__ import annotations

from corral.domain.ids import RunId, ScheduleId
from corral.domain.schedules import Schedule
from corral.store.rows import SCHEDULE
from corral.store.table import Table, given


class SqlSchedules(Table):
    def insert(self, schedule: Schedule) -> None:
        self._db.put("schedule_insert", SCHEDULE, schedule)

    def get(self, schedule_id: ScheduleId) -> Schedule | None:
        return self._one(SCHEDULE, "schedule_get", id=schedule_id)

    def lock(self, schedule_id: ScheduleId) -> Schedule | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        return self._one(SCHEDULE, "schedule_lock", id=schedule_id)

    def by_name(self, project: str, name: str) -> Schedule | None:
        return self._one(SCHEDULE, "schedule_by_name", project=project, name=name)

    def save(self, schedule: Schedule) -> None:
        """Write every column that may change after insert but the spec, which is large and rarely changes."""
        self._db.put("schedule_save", SCHEDULE, schedule)

    def put_spec(self, schedule_id: ScheduleId, spec: str) -> None:
        self._tell("schedule_put_spec", id=schedule_id, spec=spec)

    def find(self, text: str, project: str | None, limit: int) -> list[ScheduleId]:
        """Schedules with this id or name."""
        return self._column("schedule_find", text=text, limit=limit, **given(project=project))

    def unfinished(self, schedule_id: ScheduleId, limit: int) -> list[RunId]:
        """Its runs that have not ended."""
        return self._column("schedule_unfinished", schedule_id=schedule_id, limit=limit)

    def ahead(self, now: float, limit: int) -> list[ScheduleId]:
        """Schedules whose next time was computed after `now`: the clock was set back since."""
        return self._column("schedule_ahead", now=now, limit=limit)

    def page(self, project: str | None, after: ScheduleId | None, limit: int) -> list[Schedule]:
        scope = given(project=project)
        return self._all(SCHEDULE, "schedule_page", after=after or "", limit=limit, **scope)

    def due(self, now: float, limit: int) -> list[ScheduleId]:
        return self._column("schedule_due", now=now, limit=limit)

    def delete(self, schedule_id: ScheduleId) -> bool:
        return self._changed("schedule_delete", id=schedule_id)
