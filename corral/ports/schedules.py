"""Where schedules are kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.ids import RunId, ScheduleId
from corral.domain.schedules import Schedule


class Schedules(Protocol):
    def insert(self, schedule: Schedule) -> None: ...

    def get(self, schedule_id: ScheduleId) -> Schedule | None: ...

    def lock(self, schedule_id: ScheduleId) -> Schedule | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        ...

    def by_name(self, project: str, name: str) -> Schedule | None: ...

    def save(self, schedule: Schedule) -> None: ...

    def find(self, text: str, project: str | None, limit: int) -> list[ScheduleId]:
        """Those with this id or name."""
        ...

    def unfinished(self, schedule_id: ScheduleId, limit: int) -> list[RunId]:
        """Its runs that have not ended."""
        ...

    def ahead(self, now: float, limit: int) -> list[ScheduleId]:
        """Those whose next time was worked out after `now`: the clock was set back since."""
        ...

    def page(self, project: str | None, after: ScheduleId | None, limit: int) -> list[Schedule]: ...

    def due(self, now: float, limit: int) -> list[ScheduleId]: ...

    def delete(self, schedule_id: ScheduleId) -> bool: ...
