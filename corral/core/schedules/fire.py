"""Making a schedule's runs: one for each of its times, whichever server looks and whatever dies."""

from __future__ import annotations

from corral.core.audit import Author, note
from corral.core.policy import ServerPolicy
from corral.core.runs.submit import SubmitResult
from corral.core.schedules.cron import latest_cron, next_cron, next_period
from corral.core.schedules.work import SubmitKey, WorkOf
from corral.domain.errors import CorralError, StoreUnavailable, found
from corral.domain.ids import ScheduleId
from corral.domain.schedules import BY_SCHEDULE, MissedTimes, Overlap, Schedule
from corral.store.transaction import Tx

# Later than this, a time was missed: the server was away, or could not write.
MISSED_AFTER_S = 60.0


def fire(
    tx: Tx, schedule_id: ScheduleId, work_of: WorkOf, *, now: float, policy: ServerPolicy
) -> SubmitResult | None:
    """If its time has come: make the run and move on to the next time, in this one transaction."""
    schedule = tx.schedules.lock(schedule_id)
    if schedule is None or schedule.paused or schedule.next_at is None or schedule.next_at > now:
        return None
    first, at = schedule.next_at, _latest(schedule, schedule.next_at, now)
    schedule = counted(schedule, now)
    # Named by its time: whatever happens, there is one submission for it.
    principal, prefix = name_of_time(schedule)
    ask = SubmitKey(principal, f"{prefix}{at:.0f}")
    try:
        order = work_of(schedule)
    except CorralError as error:
        _skip(tx, schedule, error.message[:2000])
        return None
    if order.was_made(tx, ask):
        # The clock was set back, and this time has come before.
        tx.schedules.save(schedule)
        return None
    if now - first > MISSED_AFTER_S and schedule.missed is MissedTimes.SKIP:
        _skip(tx, schedule, "its time passed while the server was away")
        return None
    unfinished = order.unfinished(tx, schedule)
    if unfinished and schedule.overlap is Overlap.SKIP:
        _skip(tx, schedule, f"{unfinished[0]} of the time before had not ended")
        return None
    try:
        done = order.make(tx, schedule, ask, now=now)
    except StoreUnavailable:
        raise
    except CorralError as error:
        # What it names is gone: the schedule goes on, and says so.
        _skip(tx, schedule, error.message[:2000])
        return None
    if schedule.overlap is Overlap.CANCEL:
        order.cancel(tx, schedule, unfinished, now=now, policy=policy)
    tx.schedules.save(
        schedule._replace(last_at=at, last_run=done.ids[0], fired=schedule.fired + 1, problem=None)
    )
    return done


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
