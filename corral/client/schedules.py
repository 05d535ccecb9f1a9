"""Schedules."""

from __future__ import annotations

from collections.abc import Sequence

from corral.client.http.transport import Transport, quoted
from corral.client.runs import new_request_id
from corral.wire.runs import SubmitAnswer
from corral.wire.schedules import (
    RunNowRequest,
    ScheduleDetail,
    SchedulePage,
    ScheduleRequest,
    ScheduleView,
)
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import ScheduleTable


class Schedules:
    """Each call takes a schedule's id, or its name and, where several projects have one, the project."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

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
        body = ScheduleRequest(
            name=name,
            schedule=schedule,
            runs=list(specs),
            group=group,
            max_running=max_running,
            replace=replace,
        )
        # Once: the second of two equal requests is refused, as the name is taken.
        return self._transport.once("POST", "/v1/schedules", ScheduleView, body=body)

    def page(self, *, project: str | None = None, cursor: str | None = None, limit: int = 50) -> SchedulePage:
        params = {"project": project, "cursor": cursor, "limit": limit}
        return self._transport.get("/v1/schedules", SchedulePage, params)

    def all(self, *, project: str | None = None) -> list[ScheduleView]:
        params = {"project": project, "limit": 1000}
        return list(self._transport.items("/v1/schedules", SchedulePage, params))

    def get(self, schedule: str, *, project: str | None = None) -> ScheduleDetail:
        return self._transport.get(_path(schedule), ScheduleDetail, {"project": project})

    def pause(self, schedule: str, *, project: str | None = None) -> ScheduleView:
        return self._transport.repeat("POST", _path(schedule, "/pause", project), ScheduleView)

    def resume(self, schedule: str, *, project: str | None = None) -> ScheduleView:
        return self._transport.repeat("POST", _path(schedule, "/resume", project), ScheduleView)

    def run_now(
        self, schedule: str, *, project: str | None = None, request_id: str | None = None
    ) -> SubmitAnswer:
        body = RunNowRequest(request_id=request_id or new_request_id())
        return self._transport.repeat("POST", _path(schedule, "/run", project), SubmitAnswer, body=body)

    def remove(self, schedule: str, *, project: str | None = None) -> ScheduleView:
        return self._transport.once("DELETE", _path(schedule, "", project), ScheduleView)


def _path(schedule: str, rest: str = "", project: str | None = None) -> str:
    return f"/v1/schedules/{quoted(schedule)}{rest}" + (f"?project={quoted(project)}" if project else "")
