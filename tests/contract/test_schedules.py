"""One run for each time of a schedule: after an outage, a clock that jumps, and with two servers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from contract.conftest import Database
from contract.plans import POLICY, Plan, new
from contract.samples import an_artifact
from corral.core.audit import Author
from corral.core.runs.remove import remove
from corral.core.runs.submit import SubmitResult, submit
from corral.core.schedules import fire as schedules
from corral.core.schedules import manage
from corral.core.schedules.work import ScheduledRuns
from corral.domain.artifacts import Artifact, ArtifactKind
from corral.domain.errors import Conflict, InvalidInput, NotFound, QuotaExceeded
from corral.domain.ids import RunId, ScheduleId, new_schedule_id
from corral.domain.quotas import Quota
from corral.domain.runs.runs import Run, RunFilter
from corral.domain.runs.states import FINAL
from corral.domain.schedules import MissedTimes, Overlap, Schedule
from corral.store.transaction import Tx

DAY = 86_400.0
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()


def by(now: float) -> Author:
    return Author("user:ada", "127.0.0.1", now)


class Clockwork:
    """A store with schedules, and a clock that is set by hand."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.plan = Plan(db)
        self.now = NOON

    def add(self, name: str = "nightly", *, order: ScheduledRuns | None = None, **fields: Any) -> ScheduleId:
        base = Schedule(
            id=new_schedule_id(),
            project="default",
            name=name,
            spec="{}",
            cron=None if "every_s" in fields else "0 3 * * *",
            every_s=None,
            timezone="UTC",
            missed=MissedTimes.ONCE,
            overlap=Overlap.SKIP,
            paused=False,
            next_at=None,
            last_at=None,
            last_run=None,
            fired=0,
            skipped=0,
            created_at=self.now,
            created_by="user:ada",
        )
        made = base._replace(**fields)
        given = order or self.order(made)
        return self.db.write(lambda tx: manage.add(tx, made, given, by=by(self.now))).id

    @staticmethod
    def order(schedule: Schedule) -> ScheduledRuns:
        return ScheduledRuns([new(schedule.name)], None, None)

    def unit(self, schedule_id: ScheduleId) -> Any:
        now = self.now
        return lambda tx: schedules.fire(tx, schedule_id, self.order, now=now, policy=POLICY)

    def tick(self) -> int:
        """What the server's loop does; how many runs there are then."""
        now = self.now
        for one in self.db.read(lambda tx: tx.schedules.ahead(now, 10)):
            self.db.write(lambda tx, one=one: schedules.count_anew(tx, one, now=now))  # type: ignore[misc]
        for one in self.db.read(lambda tx: tx.schedules.due(now, 10)):
            self.db.write(self.unit(one))
        return len(self.runs())

    def runs(self) -> list[Run]:
        found = self.db.read(lambda tx: tx.runs.page(RunFilter(), after=None, limit=1000))
        return list(reversed(found))

    def end_all(self) -> None:
        for run in self.runs():
            if run.state not in FINAL:
                self.plan.finish(run.id)

    def get(self, schedule_id: ScheduleId) -> Schedule:
        found = self.db.read(lambda tx: tx.schedules.get(schedule_id))
        assert found is not None
        return found


@pytest.fixture
def clock(db: Database) -> Clockwork:
    return Clockwork(db)


def test_a_run_is_made_at_its_time_and_knows_its_schedule(clock: Clockwork) -> None:
    nightly = clock.add()
    assert clock.tick() == 0

    clock.now = NOON + 15 * 3600
    assert clock.tick() == 1
    assert clock.tick() == 1

    (run,) = clock.runs()
    assert (run.schedule_id, run.submitted_by, run.state) == (nightly, "schedule:nightly", "queued")
    done = clock.get(nightly)
    assert (done.last_run, done.fired, done.last_at) == (run.id, 1, NOON + 15 * 3600)
    assert done.next_at == NOON + 15 * 3600 + DAY
    where = RunFilter(schedule="nightly", project="default")
    found = clock.db.read(lambda tx: tx.runs.page(where, after=None, limit=10))
    assert [one.id for one in found] == [run.id]


@pytest.mark.parametrize(("missed", "made"), [(MissedTimes.ONCE, 1), (MissedTimes.SKIP, 0)])
def test_after_days_without_a_server_one_run_makes_up_for_all_or_none(
    clock: Clockwork, missed: MissedTimes, made: int
) -> None:
    nightly = clock.add(missed=missed)

    clock.now = NOON + 5 * DAY
    assert clock.tick() == made

    assert clock.get(nightly).next_at == NOON + 5 * DAY + 15 * 3600
    assert clock.get(nightly).skipped == 1 - made
    clock.end_all()
    clock.now += 15 * 3600 + 1
    assert clock.tick() == made + 1


def test_a_server_that_is_a_little_late_has_missed_nothing(clock: Clockwork) -> None:
    clock.add(missed=MissedTimes.SKIP)

    clock.now = NOON + 15 * 3600 + schedules.MISSED_AFTER_S - 1

    assert clock.tick() == 1


def test_a_period_keeps_its_beat(clock: Clockwork) -> None:
    often = clock.add(every_s=60.0, overlap=Overlap.QUEUE)
    times = []
    for seconds in (59, 60, 61, 125, 1000):
        clock.now = NOON + seconds
        clock.tick()
        times.append((len(clock.runs()), (clock.get(often).next_at or 0) - NOON))

    assert times == [(0, 60), (1, 120), (1, 120), (2, 180), (3, 1020)]


@pytest.mark.parametrize(
    ("overlap", "states"),
    [
        (Overlap.SKIP, ["queued"]),
        (Overlap.QUEUE, ["queued", "queued"]),
        (Overlap.CANCEL, ["cancelled", "queued"]),
    ],
)
def test_a_run_that_has_not_ended_at_the_next_time(
    clock: Clockwork, overlap: Overlap, states: list[str]
) -> None:
    nightly = clock.add(overlap=overlap)
    for days in (1, 2):
        clock.now = NOON + days * DAY
        clock.tick()

    assert [str(run.state) for run in clock.runs()] == states
    known = clock.get(nightly)
    assert (known.fired, known.skipped) == (len(states), 2 - len(states))
    if overlap is Overlap.SKIP:
        assert clock.runs()[0].id in str(known.problem)
    if overlap is Overlap.CANCEL:
        first = clock.runs()[0]
        assert "schedule" in str(first.detail)
        clock.plan.events(first.id)


def test_two_servers_make_one_run_for_a_time(clock: Clockwork) -> None:
    """On Postgres the two transactions run side by side."""
    for day in range(1, 6):
        nightly = clock.add(f"nightly-{day}")
        before = len(clock.runs())
        clock.now += DAY

        clock.plan.at_once(*(clock.unit(nightly) for _ in range(4)))

        assert len(clock.runs()) == before + 1
        assert clock.get(nightly).fired == 1


def test_a_crash_before_the_commit_makes_no_run_and_loses_no_time(clock: Clockwork) -> None:
    nightly = clock.add()
    clock.now = NOON + DAY

    def cut_short(tx: Tx) -> None:
        clock.unit(nightly)(tx)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        clock.db.write(cut_short)
    assert clock.runs() == []

    assert clock.tick() == 1


def test_a_clock_that_goes_back_a_little_repeats_nothing(clock: Clockwork) -> None:
    clock.add()
    clock.now = NOON + DAY
    assert clock.tick() == 1
    clock.end_all()

    clock.now = NOON + 15 * 3600 - 300
    assert clock.tick() == 1
    clock.now = NOON + 15 * 3600 + 1
    assert clock.tick() == 1
    clock.now = NOON + 2 * DAY
    assert clock.tick() == 2


def test_a_clock_that_was_a_year_ahead_does_not_stop_the_schedule(clock: Clockwork) -> None:
    clock.now = NOON + 365 * DAY
    nightly = clock.add(overlap=Overlap.QUEUE)
    often = clock.add("often", every_s=60.0, overlap=Overlap.QUEUE)
    clock.now += DAY
    assert clock.tick() == 2

    clock.now = NOON
    assert clock.tick() == 2
    assert clock.get(nightly).next_at == NOON + 15 * 3600
    assert clock.get(often).next_at == NOON + 60
    clock.now = NOON + 15 * 3600
    assert clock.tick() == 4


@pytest.mark.parametrize("ahead_s", [45.0, 5000.0, 400 * DAY])
def test_after_a_jump_ahead_and_back_it_goes_on_within_a_period_and_no_time_comes_twice(
    clock: Clockwork, ahead_s: float
) -> None:
    kinds: dict[str, dict[str, Any]] = {"period": {"every_s": 60.0}, "cron": {"cron": "* * * * *"}}
    all_of_them = [
        clock.add(f"{missed}-{kind}", overlap=Overlap.QUEUE, missed=missed, **times)
        for missed in MissedTimes
        for kind, times in kinds.items()
    ]
    clock.now += 30
    assert clock.tick() == 0

    clock.now += ahead_s
    clock.tick()
    made = {one: [at] if (at := clock.get(one).last_at) else [] for one in all_of_them}
    clock.now -= ahead_s
    fired = {one: list(times) for one, times in made.items()}
    for _ in range(40):
        clock.now += 7
        clock.tick()
        for one, times in fired.items():
            known = clock.get(one)
            if known.fired > len(times):
                assert known.last_at is not None
                assert known.last_at <= clock.now < known.last_at + 7
                times.append(known.last_at)

    minutes = [NOON + 60 * n for n in (1, 2, 3, 4, 5)]
    for one, times in fired.items():
        # Every minute from then on, but for one that was made while the clock was ahead.
        assert times == made[one] + [at for at in minutes if at not in made[one]]
    assert len(clock.runs()) == sum(map(len, fired.values()))


def test_the_run_that_makes_up_for_an_outage_is_of_the_last_time_that_passed(clock: Clockwork) -> None:
    nightly, often = clock.add(), clock.add("often", every_s=60.0)
    clock.now = NOON + 5 * DAY + 1

    assert clock.tick() == 2

    assert clock.get(nightly).last_at == NOON + 4 * DAY + 15 * 3600
    assert clock.get(often).last_at == NOON + 5 * DAY


def test_what_a_quota_refuses_leaves_nothing_and_the_next_time_is_made(clock: Clockwork) -> None:
    nightly = clock.add(overlap=Overlap.QUEUE)
    quota = Quota("default", None, None, 0, None, None, 1.0, clock.now, "operator:ada")
    clock.db.write(lambda tx: tx.quotas.put(quota))
    clock.now = NOON + DAY
    assert clock.tick() == 0

    known = clock.get(nightly)
    assert "max_queued" in str(known.problem)
    name = f"{nightly}-{NOON + 15 * 3600:.0f}"
    assert clock.db.read(lambda tx: tx.runs.submission("schedule:nightly", name)) is None
    # The clock goes back, the quota is raised: the time that made no run makes one.
    clock.db.write(lambda tx: tx.quotas.put(quota._replace(max_queued=1)))
    clock.now = NOON + 15 * 3600 - 1
    assert clock.tick() == 0
    clock.now += 2
    assert clock.tick() == 1

    def again(tx: Tx) -> SubmitResult:
        return submit(
            tx, [new("nightly")], request_id=name, group=None, principal="schedule:nightly", now=1.0
        )

    # Asked once more it gives the first answer, though there is no room now.
    assert clock.db.write(again).ids == (clock.runs()[0].id,)
    with pytest.raises(QuotaExceeded):
        clock.db.write(
            lambda tx: submit(tx, [new()], request_id="other", group=None, principal="user:ada", now=1.0)
        )


def test_what_a_schedule_reads_is_free_once_it_is_replaced_or_removed(clock: Clockwork) -> None:
    code, other = an_artifact(kind=ArtifactKind.CODE), an_artifact(kind=ArtifactKind.CODE)
    clock.db.write(lambda tx: tx.artifacts.insert(code, []))
    clock.db.write(lambda tx: tx.artifacts.insert(other, []))

    def reads(one: Artifact) -> ScheduledRuns:
        return ScheduledRuns([new("nightly", code=one.id)], None, None)

    def unused() -> set[str]:
        return set(clock.db.read(lambda tx: tx.artifacts.unused_uploads(clock.now, 10)))

    nightly = clock.add(order=reads(code))
    assert unused() == {other.id}
    clock.now = NOON + DAY
    now = clock.now
    done = clock.db.write(
        lambda tx: schedules.fire(tx, nightly, lambda _: reads(code), now=now, policy=POLICY)
    )
    schedule = clock.get(nightly)._replace(id=new_schedule_id())
    clock.db.write(lambda tx: manage.replace(tx, schedule, reads(other), by=by(now)))
    assert clock.db.read(lambda tx: tx.artifacts.used_by(RunId(nightly))) == [other.id]
    # The run that it made reads it still.
    assert done is not None
    assert unused() == set()
    clock.end_all()
    clock.db.write(lambda tx: remove(tx, done.ids[0], by=by(now)))
    assert unused() == {code.id}

    name = f"{nightly}-{NOON + 15 * 3600:.0f}"
    assert clock.db.read(lambda tx: tx.runs.submission("schedule:nightly", name)) is not None

    clock.db.write(lambda tx: manage.remove(tx, nightly, by=by(now)))

    assert unused() == {code.id, other.id}
    assert clock.db.read(lambda tx: tx.runs.submission("schedule:nightly", name)) is None
    assert clock.db.read(lambda tx: tx.artifacts.is_used(other.id, but=RunId(""))) is False


def test_paused_times_are_not_made_up_for(clock: Clockwork) -> None:
    nightly = clock.add()
    clock.db.write(lambda tx: manage.pause(tx, nightly, by=by(clock.now)))

    clock.now = NOON + 3 * DAY
    assert clock.tick() == 0
    clock.db.write(lambda tx: manage.resume(tx, nightly, by=by(clock.now)))

    assert clock.tick() == 0
    assert clock.get(nightly).next_at == NOON + 3 * DAY + 15 * 3600


def test_a_run_now_is_beside_the_times(clock: Clockwork) -> None:
    nightly = clock.add()

    def now_unit(tx: Tx) -> RunId:
        done = schedules.run_now(tx, nightly, clock.order, request_id="by-hand-1", by=by(clock.now))
        return done.ids[0]

    first = clock.db.write(now_unit)
    assert clock.db.write(now_unit) == first

    assert clock.runs()[0].schedule_id == nightly
    assert clock.get(nightly).next_at == NOON + 15 * 3600
    assert clock.get(nightly).fired == 1


def test_what_it_needs_and_is_gone_is_told_and_the_schedule_goes_on(clock: Clockwork) -> None:
    nightly = clock.add()

    def needs_a_secret(schedule: Schedule) -> ScheduledRuns:
        return ScheduledRuns([new(secrets=("GONE",))], None, None)

    clock.now = NOON + DAY
    now = clock.now
    clock.db.write(lambda tx: schedules.fire(tx, nightly, needs_a_secret, now=now, policy=POLICY))

    known = clock.get(nightly)
    assert clock.runs() == []
    assert "GONE" in str(known.problem)
    assert (known.skipped, known.next_at) == (1, NOON + 15 * 3600 + DAY)
    clock.now += DAY
    assert clock.tick() == 1
    assert clock.get(nightly).problem is None


def test_what_cannot_be_is_refused_when_it_is_added(clock: Clockwork) -> None:
    with pytest.raises(InvalidInput, match="day-of-month"):
        clock.add(cron="0 0 31 2 *")
    with pytest.raises(InvalidInput, match="shortest period"):
        clock.add(every_s=5.0)
    with pytest.raises(InvalidInput, match="GONE"):
        clock.add(order=ScheduledRuns([new(secrets=("GONE",))], None, None))
    assert clock.db.read(lambda tx: tx.schedules.page(None, None, 10)) == []


def test_a_name_is_taken_once_and_replaced_when_asked(clock: Clockwork) -> None:
    first = clock.add()
    clock.now = NOON + DAY
    clock.tick()
    with pytest.raises(Conflict, match="already"):
        clock.add()
    other = clock.get(first)._replace(id=new_schedule_id(), cron="0 4 * * *", fired=0, next_at=None)

    done = clock.db.write(lambda tx: manage.replace(tx, other, clock.order(other), by=by(clock.now)))

    assert (done.id, done.fired, done.next_at) == (first, 1, NOON + DAY + 16 * 3600)


def test_what_a_schedule_makes_is_looked_at_only_where_it_is_made(clock: Clockwork) -> None:
    """ATK-29: five specs of 1 MiB were parsed in the transaction each time, also where it was skipped."""
    nightly = clock.add()
    looked: list[str] = []

    def fire() -> Schedule:
        def look(schedule: Schedule) -> ScheduledRuns:
            looked.append(schedule.name)
            return clock.order(schedule)

        now = clock.now
        clock.db.write(lambda tx: schedules.fire(tx, nightly, look, now=now, policy=POLICY))
        return clock.get(nightly)

    def about_to() -> bool:
        return clock.db.read(lambda tx: schedules.about_to_fire(tx, nightly, now=clock.now)) is not None

    assert (about_to(), fire().fired, looked) == (False, 0, [])
    clock.now = NOON + DAY
    assert (about_to(), fire().fired, looked) == (True, 1, ["nightly"])
    # The run of the time before has not ended.
    clock.now += DAY
    assert (about_to(), fire().skipped, looked) == (False, 1, ["nightly"])
    clock.end_all()
    # The clock was set back, and this time has come before.
    clock.now = NOON - 1
    clock.db.write(lambda tx: schedules.count_anew(tx, nightly, now=clock.now))
    clock.now = NOON + DAY
    assert (about_to(), fire().fired, looked) == (False, 1, ["nightly"])
    clock.now += DAY
    assert (about_to(), fire().fired, looked) == (True, 2, ["nightly"] * 2)


def test_what_a_schedule_makes_is_written_when_it_is_replaced_and_not_when_it_fires(clock: Clockwork) -> None:
    """ATK-29: each of its times wrote all of it anew."""
    nightly = clock.add(spec='{"runs": []}')
    changed = clock.get(nightly)._replace(spec="other", fired=7)
    clock.db.write(lambda tx: tx.schedules.save(changed))
    assert (clock.get(nightly).spec, clock.get(nightly).fired) == ('{"runs": []}', 7)
    other = clock.get(nightly)._replace(id=new_schedule_id(), spec='{"runs": [1]}')
    clock.db.write(lambda tx: manage.replace(tx, other, clock.order(other), by=by(clock.now)))
    assert clock.get(nightly).spec == '{"runs": [1]}'


def test_a_group_is_made_with_its_limit(clock: Clockwork) -> None:
    nightly = clock.add()
    clock.now = NOON + DAY
    now = clock.now
    several = ScheduledRuns([new("seed") for _ in range(3)], "seeds", 1)

    clock.db.write(lambda tx: schedules.fire(tx, nightly, lambda _: several, now=now, policy=POLICY))

    assert sorted(str(run.state) for run in clock.runs()) == ["held", "held", "queued"]
    assert {run.schedule_id for run in clock.runs()} == {nightly}
    while found := clock.runs():
        # Nothing is left of it once its runs are removed.
        assert len(clock.db.read(lambda tx: tx.groups.page(None, after=None, limit=10))) == 1
        for run in found:
            if run.state == "queued":
                clock.plan.finish(run.id)
        ended = next(run.id for run in clock.runs() if run.state in FINAL)
        clock.db.write(lambda tx, ended=ended: remove(tx, ended, by=by(now)))  # type: ignore[misc]
    assert clock.db.read(lambda tx: tx.groups.page(None, after=None, limit=10)) == []


def test_a_removed_schedule_leaves_its_runs_and_is_in_the_audit(clock: Clockwork) -> None:
    nightly = clock.add()
    clock.now = NOON + DAY
    clock.tick()

    clock.db.write(lambda tx: manage.remove(tx, nightly, by=by(clock.now)))

    clock.now += DAY
    assert clock.tick() == 1
    with pytest.raises(NotFound):
        clock.db.write(lambda tx: manage.pause(tx, nightly, by=by(clock.now)))
    last = clock.db.read(lambda tx: tx.audit.last())
    assert last is not None
    assert (last.action, last.target, last.actor) == ("schedule.remove", nightly, "user:ada")
