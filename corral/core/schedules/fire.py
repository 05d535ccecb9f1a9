"""Schedules: making runs by the clock, one for each time, whoever watches and whatever dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from corral.core.audit import note
from corral.core.policy import ServerPolicy
from corral.core.runs.cancel import cancel
from corral.core.runs.submit import NewRun, SubmitResult, missing_of, names_what_is_missing, submit
from corral.core.schedules.cron import check_times, latest_cron, next_cron, next_period
from corral.domain.errors import Conflict, CorralError, NotFound, StoreUnavailable
from corral.domain.ids import ArtifactId, RunId, ScheduleId
from corral.domain.schedules import MissedTimes, Overlap, Schedule
from corral.domain.states import FINAL, STOPPING
from corral.store.transaction import Tx

# Later than this, a time was missed: the server was away, or could not write.
MISSED_AFTER_S = 60.0
_MOST_CANCELLED = 1000


class ScheduleActor(NamedTuple):
    """Whoever asked, for the audit."""

    actor: str
    origin: str


class NewSchedule(NamedTuple):
    """In whose name something is made, and under which key: the same again makes nothing anew."""

    principal: str
    request_id: str


class ScheduledWork(Protocol):
    """What a schedule makes at each of its times: runs, or a call of a function."""

    def check(self, tx: Tx) -> None:
        """Raise if something that it names is not there."""
        ...

    def keep(self, tx: Tx, schedule_id: ScheduleId) -> None:
        """Hold on to what it needs, as long as the schedule is there."""
        ...

    def was_made(self, tx: Tx, ask: NewSchedule) -> bool: ...

    def make(self, tx: Tx, schedule: Schedule, ask: NewSchedule, *, now: float) -> SubmitResult: ...

    def unfinished(self, tx: Tx, schedule: Schedule) -> Sequence[RunId]:
        """What it made and has not ended."""
        ...

    def cancel(
        self, tx: Tx, schedule: Schedule, made: Sequence[RunId], *, now: float, policy: ServerPolicy
    ) -> None: ...


class ScheduleOrder(NamedTuple):
    """Runs that a schedule submits at each of its times."""

    runs: Sequence[NewRun]
    group: str | None
    max_running: int | None

    def check(self, tx: Tx) -> None:
        _check_all_there(tx, self)

    def keep(self, tx: Tx, schedule_id: ScheduleId) -> None:
        _keep_artifacts(tx, schedule_id, self)

    def was_made(self, tx: Tx, ask: NewSchedule) -> bool:
        return tx.runs.submission(ask.principal, ask.request_id) is not None

    def make(self, tx: Tx, schedule: Schedule, ask: NewSchedule, *, now: float) -> SubmitResult:
        return submit(
            tx,
            self.runs,
            request_id=ask.request_id,
            group=self.group,
            principal=ask.principal,
            now=now,
            max_running=self.max_running,
            schedule_id=schedule.id,
        )

    def unfinished(self, tx: Tx, schedule: Schedule) -> Sequence[RunId]:
        return tx.schedules.unfinished(schedule.id, _MOST_CANCELLED)

    def cancel(
        self, tx: Tx, schedule: Schedule, made: Sequence[RunId], *, now: float, policy: ServerPolicy
    ) -> None:
        _cancel(tx, schedule, made, now=now, policy=policy)


OrderOf = Callable[[Schedule], ScheduledWork]


def add(tx: Tx, schedule: Schedule, order: ScheduledWork, *, who: ScheduleActor, now: float) -> Schedule:
    """Store it; the first run is made at its first time."""
    check_times(schedule.cron, schedule.every_s, schedule.timezone, now)
    if tx.schedules.by_name(schedule.project, schedule.name) is not None:
        raise Conflict(
            f"project {schedule.project} has a schedule {schedule.name} already",
            hint=f"Change it with --replace, or remove it with `corral schedules rm {schedule.name}`.",
        )
    order.check(tx)
    schedule = _counted(schedule, now)
    tx.schedules.insert(schedule)
    order.keep(tx, schedule.id)
    _note(tx, "schedule.add", schedule, who, now)
    return schedule


def replace(tx: Tx, schedule: Schedule, order: ScheduledWork, *, who: ScheduleActor, now: float) -> Schedule:
    """The same schedule with other runs or other times; what it made so far stays."""
    check_times(schedule.cron, schedule.every_s, schedule.timezone, now)
    known = tx.schedules.by_name(schedule.project, schedule.name)
    if known is None:
        return add(tx, schedule, order, who=who, now=now)
    order.check(tx)
    old = locked(tx, known.id)
    new = schedule._replace(
        id=old.id,
        paused=old.paused,
        next_at=old.next_at,
        last_at=old.last_at,
        last_run=old.last_run,
        fired=old.fired,
        skipped=old.skipped,
        created_at=old.created_at,
        created_by=old.created_by,
        counted_at=old.counted_at,
    )
    same_times = (old.cron, old.every_s, old.timezone) == (new.cron, new.every_s, new.timezone)
    if not same_times:
        new = _counted(new._replace(next_at=None), now)
    tx.schedules.save(new)
    order.keep(tx, new.id)
    _note(tx, "schedule.replace", new, who, now)
    return new


def pause(tx: Tx, schedule_id: ScheduleId, *, who: ScheduleActor, now: float) -> Schedule:
    schedule = locked(tx, schedule_id)
    if schedule.paused:
        return schedule
    schedule = schedule._replace(paused=True)
    tx.schedules.save(schedule)
    _note(tx, "schedule.pause", schedule, who, now)
    return schedule


def resume(tx: Tx, schedule_id: ScheduleId, *, who: ScheduleActor, now: float) -> Schedule:
    """From its next time on; times that passed while it was paused were not missed."""
    schedule = locked(tx, schedule_id)
    if not schedule.paused:
        return schedule
    schedule = _counted(schedule._replace(paused=False, problem=None), now)
    tx.schedules.save(schedule)
    _note(tx, "schedule.resume", schedule, who, now)
    return schedule


def remove(tx: Tx, schedule_id: ScheduleId, *, who: ScheduleActor, now: float) -> None:
    """Its runs stay; of the times that it made nothing does."""
    schedule = locked(tx, schedule_id)
    tx.schedules.delete(schedule_id)
    tx.artifacts.forget_uses(RunId(schedule_id))
    principal, prefix = _name_of_time(schedule)
    tx.runs.forget_submissions(principal, prefix)
    _note(tx, "schedule.remove", schedule, who, now)


def run_now(
    tx: Tx, schedule_id: ScheduleId, order_of: OrderOf, *, request_id: str, who: ScheduleActor, now: float
) -> SubmitResult:
    """Beside its times, and whether or not the run before has ended."""
    schedule = locked(tx, schedule_id)
    done = order_of(schedule).make(tx, schedule, NewSchedule(who.actor, request_id), now=now)
    if schedule.last_run != done.ids[0]:
        tx.schedules.save(schedule._replace(last_run=done.ids[0], fired=schedule.fired + 1))
        _note(tx, "schedule.run_now", schedule, who, now)
    return done


def fire(
    tx: Tx, schedule_id: ScheduleId, order_of: OrderOf, *, now: float, policy: ServerPolicy
) -> SubmitResult | None:
    """If its time has come: make the run and move on to the next time, in this one transaction."""
    schedule = tx.schedules.lock(schedule_id)
    if schedule is None or schedule.paused or schedule.next_at is None or schedule.next_at > now:
        return None
    first, at = schedule.next_at, _latest(schedule, schedule.next_at, now)
    schedule = _counted(schedule, now)
    # Named by its time: whatever happens, there is one submission for it.
    principal, prefix = _name_of_time(schedule)
    ask = NewSchedule(principal, f"{prefix}{at:.0f}")
    try:
        order = order_of(schedule)
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


def count_anew(tx: Tx, schedule_id: ScheduleId, *, now: float) -> None:
    """The clock was set back: its next time is the first one from now. One that was made stays made."""
    schedule = tx.schedules.lock(schedule_id)
    if schedule is not None and schedule.counted_at is not None and schedule.counted_at > now:
        tx.schedules.save(_counted(schedule, now))


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


def _name_of_time(schedule: Schedule) -> tuple[str, str]:
    """Who submits, and how the request ids of its times begin."""
    return f"schedule:{schedule.name}", f"{schedule.id}-"


def _counted(schedule: Schedule, now: float) -> Schedule:
    return schedule._replace(next_at=following(schedule, now), counted_at=now)


def locked(tx: Tx, schedule_id: ScheduleId) -> Schedule:
    schedule = tx.schedules.lock(schedule_id)
    if schedule is None:
        raise NotFound(f"there is no schedule {schedule_id}", hint="List them with `corral schedules ls`.")
    return schedule


def _skip(tx: Tx, schedule: Schedule, why: str) -> None:
    tx.schedules.save(schedule._replace(skipped=schedule.skipped + 1, problem=why))


def _cancel(tx: Tx, schedule: Schedule, runs: Sequence[RunId], *, now: float, policy: ServerPolicy) -> None:
    for run_id in runs:
        run = tx.runs.lock(run_id)
        if run is not None and run.state not in STOPPING | FINAL:
            reason = "the next time of its schedule came"
            cancel(tx, run_id, reason=reason, actor=f"schedule:{schedule.name}", now=now, policy=policy)


def _check_all_there(tx: Tx, order: ScheduleOrder) -> None:
    missing = [
        found
        for index, run in enumerate(order.runs)
        for found in missing_of(
            tx,
            run.project,
            code=run.code,
            inputs=run.inputs,
            secrets=run.secrets,
            prefix=f"runs[{index}]." if len(order.runs) > 1 else "",
            parts=run.parts,
        )
    ]
    if missing:
        raise names_what_is_missing(missing)


def _keep_artifacts(tx: Tx, schedule_id: ScheduleId, order: ScheduleOrder) -> None:
    """Code and inputs stay as long as the schedule: to the collector it is one more run that reads them."""
    used: list[ArtifactId] = []
    for run in order.runs:
        used += [*([run.code] if run.code else []), *run.inputs.values()]
    tx.artifacts.forget_uses(RunId(schedule_id))
    tx.artifacts.use(RunId(schedule_id), dict.fromkeys(used))


def _note(tx: Tx, action: str, schedule: Schedule, who: ScheduleActor, now: float) -> None:
    note(
        tx,
        action,
        schedule.id,
        actor=who.actor,
        origin=who.origin,
        now=now,
        name=schedule.name,
        project=schedule.project,
    )
