"""Runs that are made again and again, by the clock."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import RunId, ScheduleId


class MissedTimes(StrEnum):
    """What becomes of times that passed while the server was away."""

    SKIP = "skip"
    ONCE = "once"


class Overlap(StrEnum):
    """What becomes of a time at which the run before has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


# How the actor of what a schedule makes begins.
BY_SCHEDULE = "schedule:"


class Schedule(NamedTuple):
    """`spec` is what to submit, as JSON. Either `cron` (read in `timezone`) or `every_s` is set."""

    id: ScheduleId
    project: str
    name: str
    spec: str
    cron: str | None
    every_s: float | None
    timezone: str
    missed: MissedTimes
    overlap: Overlap
    created_at: float
    created_by: str
    paused: bool = False
    next_at: float | None = None
    last_at: float | None = None
    last_run: RunId | None = None
    fired: int = 0
    skipped: int = 0
    # Why its last time made no run.
    problem: str | None = None
    # What the clock said when next_at was worked out.
    counted_at: float | None = None
