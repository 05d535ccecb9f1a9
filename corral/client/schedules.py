"""Schedules."""

from __future__ import annotations

from collections.abc import Sequence

from corral.client.api import Api
from corral.client.runs import new_request_id
from corral.domain.errors import SPEC_HINT
from corral.wire.base import validated
from corral.wire.runs import SubmitAnswer
from corral.wire.schedules import RunNowRequest, ScheduleDetail, SchedulePage, ScheduleRequest, ScheduleView
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import ScheduleTable


class Schedules(Api):
    """Each call takes a schedule's id, or its name and, where several projects have one, the project."""

    root = "/v1/schedules"

    def add(
        self,
        name: str,
        schedule: ScheduleTable,
        specs: Sequence[RunSpec],
        *,
        group: str | None = None,
        max_running: int | None = None,
        replace: bool = False,
    ) -> ScheduleView:
        given = {
            "name": name,
            "schedule": schedule,
            "runs": list(specs),
            "group": group,
            "max_running": max_running,
            "replace": replace,
        }
        body = validated(ScheduleRequest, given, what="the schedule", hint=SPEC_HINT)
        # Once: the second of two equal requests is refused, as the name is taken.
        return self._transport.once("POST", self.root, ScheduleView, body=body)

    def page(self, *, project: str | None = None, cursor: str | None = None, limit: int = 50) -> SchedulePage:
        params = {"project": project, "cursor": cursor, "limit": limit}
        return self._transport.get(self.root, SchedulePage, params)

    def all(self, *, project: str | None = None) -> list[ScheduleView]:
        params = {"project": project, "limit": 1000}
        return list(self._transport.items(self.root, SchedulePage, params))

    def get(self, schedule: str, *, project: str | None = None) -> ScheduleDetail:
        return self._transport.get(self._path(schedule), ScheduleDetail, {"project": project})

    def pause(self, schedule: str, *, project: str | None = None) -> ScheduleView:
        params = {"project": project or None}
        return self._transport.repeat("POST", self._path(schedule, "pause"), ScheduleView, params=params)

    def resume(self, schedule: str, *, project: str | None = None) -> ScheduleView:
        params = {"project": project or None}
        return self._transport.repeat("POST", self._path(schedule, "resume"), ScheduleView, params=params)

    def run_now(
        self, schedule: str, *, project: str | None = None, request_id: str | None = None
    ) -> SubmitAnswer:
        body = RunNowRequest(request_id=request_id or new_request_id())
        path, params = self._path(schedule, "run"), {"project": project or None}
        return self._transport.repeat("POST", path, SubmitAnswer, body=body, params=params)

    def remove(self, schedule: str, *, project: str | None = None) -> ScheduleView:
        params = {"project": project or None}
        return self._transport.once("DELETE", self._path(schedule), ScheduleView, params=params)
