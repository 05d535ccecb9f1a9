"""Adding, changing, pausing and removing schedules."""

from __future__ import annotations

from corral.core.audit import Author
from corral.core.schedules.cron import check_times
from corral.core.schedules.fire import counted, locked, name_of_time, note_change
from corral.core.schedules.work import ScheduledWork
from corral.domain.errors import Conflict
from corral.domain.ids import RunId, ScheduleId
from corral.domain.schedules import Schedule
from corral.store.transaction import Tx


def add(tx: Tx, schedule: Schedule, order: ScheduledWork, *, by: Author) -> Schedule:
    """Store it; the first run is made at its first time."""
    check_times(schedule.cron, schedule.every_s, schedule.timezone, by.now)
    if tx.schedules.by_name(schedule.project, schedule.name) is not None:
        raise Conflict(
            f"project {schedule.project} has a schedule {schedule.name} already",
            hint=f"Change it with --replace, or remove it with `corral schedules rm {schedule.name}`.",
        )
    order.check(tx)
    schedule = counted(schedule, by.now)
    tx.schedules.insert(schedule)
    order.keep(tx, schedule.id)
    note_change(tx, "schedule.add", schedule, by)
    return schedule


def replace(tx: Tx, schedule: Schedule, order: ScheduledWork, *, by: Author) -> Schedule:
    """The same schedule with other runs or other times; what it made so far stays."""
    check_times(schedule.cron, schedule.every_s, schedule.timezone, by.now)
    known = tx.schedules.by_name(schedule.project, schedule.name)
    if known is None:
        return add(tx, schedule, order, by=by)
    order.check(tx)
    old = locked(tx, known.id)
    new = old._replace(spec=schedule.spec, missed=schedule.missed, overlap=schedule.overlap, problem=None)
    new = new._replace(cron=schedule.cron, every_s=schedule.every_s, timezone=schedule.timezone)
    if (old.cron, old.every_s, old.timezone) != (new.cron, new.every_s, new.timezone):
        new = counted(new._replace(next_at=None), by.now)
    tx.schedules.save(new)
    tx.schedules.put_spec(new.id, new.spec)
    order.keep(tx, new.id)
    note_change(tx, "schedule.replace", new, by)
    return new


def pause(tx: Tx, schedule_id: ScheduleId, *, by: Author) -> Schedule:
    schedule = locked(tx, schedule_id)
    if schedule.paused:
        return schedule
    schedule = schedule._replace(paused=True)
    tx.schedules.save(schedule)
    note_change(tx, "schedule.pause", schedule, by)
    return schedule


def resume(tx: Tx, schedule_id: ScheduleId, *, by: Author) -> Schedule:
    """From its next time on; times that passed while it was paused were not missed."""
    schedule = locked(tx, schedule_id)
    if not schedule.paused:
        return schedule
    schedule = counted(schedule._replace(paused=False, problem=None), by.now)
    tx.schedules.save(schedule)
    note_change(tx, "schedule.resume", schedule, by)
    return schedule


def remove(tx: Tx, schedule_id: ScheduleId, *, by: Author) -> Schedule:
    """Its runs stay; the record of which times it has made goes."""
    schedule = locked(tx, schedule_id)
    tx.schedules.delete(schedule_id)
    tx.artifacts.forget_uses(RunId(schedule_id))
    principal, prefix = name_of_time(schedule)
    tx.runs.forget_submissions(principal, prefix)
    note_change(tx, "schedule.remove", schedule, by)
    return schedule
