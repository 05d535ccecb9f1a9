"""Schedules: runs that are made by the clock."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corral.wire.base import Answer, AnswerPage, Name, RequestId, Strict, known_only
from corral.wire.runs import RunSpecs
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import ScheduleTable


class ScheduleRequest(Strict):
    """`replace` changes the schedule of that name, if there is one; otherwise that is refused."""

    name: Name
    schedule: ScheduleTable
    runs: RunSpecs
    group: Name | None = None
    max_running: int | None = Field(None, ge=1, le=10_000)
    replace: bool = False


class RunNowRequest(Strict):
    """The same `request_id` again makes no second run."""

    request_id: RequestId


class ScheduleView(Answer):
    """Times are Unix seconds. `problem` says why its last time made no run."""

    id: str
    project: str
    name: str
    cron: str | None = None
    every: float | None = None
    timezone: str
    missed: str
    overlap: str
    paused: bool
    next_at: float | None = None
    last_at: float | None = None
    last_run: str | None = None
    fired: int
    skipped: int
    problem: str | None = None
    created_at: float
    created_by: str


class ScheduleDetail(ScheduleView):
    """`times` are the next ones."""

    runs: Annotated[list[RunSpec], known_only(RunSpec)]
    group: str | None = None
    max_running: int | None = None
    function: str | None = Field(None, description="Of a deployed function's schedule: what it calls.")
    times: list[float] = []


class SchedulePage(AnswerPage[ScheduleView]): ...
