"""Making a schedule's runs: one for each of its times, whichever server looks and whatever dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corral.core.audit import Author, note
from corral.core.policy import ServerPolicy
from corral.core.runs.submit import SubmitResult
from corral.core.schedules.cron import latest_cron, next_cron, next_period
from corral.core.schedules.work import ScheduledWork, SubmitKey, WorkOf, was_submitted
from corral.domain.errors import CorralError, StoreUnavailable, found
from corral.domain.ids import RunId, ScheduleId
from corral.domain.schedules import BY_SCHEDULE, MissedTimes, Overlap, Schedule
from corral.store.transaction import Tx

# Later than this, a time was missed: the server was away, or could not write.
MISSED_AFTER_S = 60.0


class DueTime(NamedTuple):
    """A time of a schedule that has come. The latest, `at`, stands for all since `first`."""

    first: float
    at: float
    ask: SubmitKey


def due_time(schedule: Schedule | None, now: float) -> DueTime | None:
    if schedule is None or schedule.paused or schedule.next_at is None or schedule.next_at > now:
        return None
    first, at = schedule.next_at, _latest(schedule, schedule.next_at, now)
    # Named by its time: whatever happens, there is one submission for it.
    principal, prefix = name_of_time(schedule)
    return DueTime(first, at, SubmitKey(principal, f"{prefix}{at:.0f}"))


def about_to_fire(tx: Tx, schedule_id: ScheduleId, *, now: float) -> Schedule | None:
    """The schedule, if its time has come and none of its runs keeps it from making what it makes."""
    schedule = tx.schedules.get(schedule_id)
    due = due_time(schedule, now)
    if schedule is None or due is None or was_submitted(tx, due.ask) or _overlapping(tx, schedule):
        return None
    return schedule


def fire(
    tx: Tx, schedule_id: ScheduleId, work_of: WorkOf, *, now: float, policy: ServerPolicy
) -> SubmitResult | None:
    """If its time has come: make the run and move on to the next time, in this one transaction.

    What it makes may be megabytes, and is looked at last.
    """
    schedule = tx.schedules.lock(schedule_id)
    due = due_time(schedule, now)
    if schedule is None or due is None:
        return None
    schedule = counted(schedule, now)
    if was_submitted(tx, due.ask):
        tx.schedules.save(schedule)
        return None
    if overlapping := _overlapping(tx, schedule):
        _skip(tx, schedule, _not_ended(overlapping))
        return None
    try:
        order = work_of(schedule)
    except CorralError as error:
        _skip(tx, schedule, error.message[:2000])
        return None
    return _fire(tx, schedule, order, due, now=now, policy=policy)


def _fire(
    tx: Tx, schedule: Schedule, order: ScheduledWork, due: DueTime, *, now: float, policy: ServerPolicy
) -> SubmitResult | None:
    if order.was_made(tx, due.ask):
        # The clock was set back, and this time has come before.
        tx.schedules.save(schedule)
        return None
    if now - due.first > MISSED_AFTER_S and schedule.missed is MissedTimes.SKIP:
        _skip(tx, schedule, "its time passed while the server was away")
        return None
    unfinished = order.unfinished(tx, schedule)
    if unfinished and schedule.overlap is Overlap.SKIP:
        _skip(tx, schedule, _not_ended(unfinished))
        return None
    try:
        done = order.make(tx, schedule, due.ask, now=now)
    except StoreUnavailable:
        raise
    except CorralError as error:
        # What it names is gone: the schedule goes on, and says so.
        _skip(tx, schedule, error.message[:2000])
        return None
    if schedule.overlap is Overlap.CANCEL:
        order.cancel(tx, schedule, unfinished, now=now, policy=policy)
    tx.schedules.save(
        schedule._replace(last_at=due.at, last_run=done.ids[0], fired=schedule.fired + 1, problem=None)
    )
    return done


def _overlapping(tx: Tx, schedule: Schedule) -> Sequence[RunId]:
    """Its runs that keep it from making more; a schedule of calls has none."""
    return tx.schedules.unfinished(schedule.id, 1) if schedule.overlap is Overlap.SKIP else ()


def _not_ended(made: Sequence[RunId]) -> str:
    return f"{made[0]} of the time before had not ended"


def run_now(tx: Tx, schedule_id: ScheduleId, work_of: WorkOf, *, request_id: str, by: Author) -> SubmitResult:
    """Beside its times, and whether or not the run before has ended."""
    schedule = locked(tx, schedule_id)
    done = work_of(schedule).make(tx, schedule, SubmitKey(by.actor, request_id), now=by.now)
    if schedule.last_run != done.ids[0]:
        tx.schedules.save(schedule._replace(last_run=done.ids[0], fired=schedule.fired + 1))
        note_change(tx, "schedule.run_now", schedule, by)
    return done


def count_anew(tx: Tx, schedule_id: ScheduleId, *, now: float) -> None:
    """The clock was set back: its next time is the first one from now. One that was made stays made."""
    schedule = tx.schedules.lock(schedule_id)
    if schedule is not None and schedule.counted_at is not None and schedule.counted_at > now:
        tx.schedules.save(counted(schedule, now))


def following(schedule: Schedule, now: float) -> float | None:
    """Its first time after now."""
    if schedule.cron is not None:
        return next_cron(schedule.cron, schedule.timezone, now)
    assert schedule.every_s is not None, "a schedule has one or the other"
    return next_period(schedule.every_s, now if schedule.next_at is None else schedule.next_at, now)


def _latest(schedule: Schedule, first: float, now: float) -> float:
    """Of the times from `first` to now the last: the run that makes up for all of them is of that one."""
    if schedule.cron is not None:
        return latest_cron(schedule.cron, schedule.timezone, first, now)
    assert schedule.every_s is not None, "a schedule has one or the other"
    return next_period(schedule.every_s, first, now) - schedule.every_s


def name_of_time(schedule: Schedule) -> tuple[str, str]:
    """Who submits, and how the request ids of its times begin."""
    return f"{BY_SCHEDULE}{schedule.name}", f"{schedule.id}-"


def counted(schedule: Schedule, now: float) -> Schedule:
    return schedule._replace(next_at=following(schedule, now), counted_at=now)


def locked(tx: Tx, schedule_id: ScheduleId) -> Schedule:
    hint = "List them with `corral schedules ls`."
    return found(tx.schedules.lock(schedule_id), f"there is no schedule {schedule_id}", hint=hint)


def _skip(tx: Tx, schedule: Schedule, why: str) -> None:
    tx.schedules.save(schedule._replace(skipped=schedule.skipped + 1, problem=why))


def note_change(tx: Tx, action: str, schedule: Schedule, by: Author) -> None:
    note(tx, action, schedule.id, by, name=schedule.name, project=schedule.project)
