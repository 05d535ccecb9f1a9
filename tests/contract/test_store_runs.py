"""Runs, and the queue that the scheduler sees."""

from __future__ import annotations

import json

import pytest

from contract.conftest import Database
from contract.samples import SHAPE, a_lease, a_run, digest_of
from corral.domain.artifacts import Segment
from corral.domain.errors import Conflict, NotFound
from corral.domain.ids import GroupId, HostId, RunId, new_group_id
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Group, Run, RunFilter, Submission
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx


def insert(db: Database, *runs: Run) -> None:
    def unit(tx: Tx) -> None:
        for run in runs:
            tx.runs.insert(run, "{}")

    db.write(unit)


def listed(db: Database, where: RunFilter, limit: int = 100) -> list[RunId]:
    return [run.id for run in db.read(lambda tx: tx.runs.page(where, after=None, limit=limit))]


def test_a_run_comes_back_as_it_was_stored(db: Database) -> None:
    run = a_run(elastic=True, seed=7, labels='{"team": "ü"}', wall_limit_s=60.0)
    db.write(lambda tx: tx.runs.insert(run, '{"command": ["true"]}'))

    assert db.read(lambda tx: tx.runs.get(run.id)) == run
    assert db.write(lambda tx: tx.runs.lock(run.id)) == run
    assert db.read(lambda tx: tx.runs.spec(run.id)) == '{"command": ["true"]}'


def test_what_is_not_there_is_none(db: Database) -> None:
    absent = a_run().id

    assert db.read(lambda tx: tx.runs.get(absent)) is None
    assert db.write(lambda tx: tx.runs.lock(absent)) is None
    with pytest.raises(NotFound):
        db.read(lambda tx: tx.runs.spec(absent))


def test_a_save_keeps_everything_that_may_change(db: Database) -> None:
    """MT-C28."""
    run = a_run()
    insert(db, run)
    changed = run._replace(
        state=RunState.HALTING,
        hold_reason="backoff",
        not_before=1.5,
        ready_at=2.5,
        started_at=3.5,
        ended_at=4.5,
        reason=Reason.OUT_OF_MEMORY,
        detail="näive \N{SNOWMAN}",
        exit_code=137,
        signal=9,
        attempt=2,
        epoch=5,
        used_infrastructure=1,
        used_memory=2,
        used_code=3,
        ran_s=6.5,
        stop_deadline=7.5,
        stop_reason=Reason.WALL_LIMIT,
        last_host=HostId("h-bcdfghjkmnpq"),
        metrics='{"loss": 1.5}',
        event_n=9,
    )
    db.write(lambda tx: tx.runs.save(changed))

    assert db.read(lambda tx: tx.runs.get(run.id)) == changed


def test_a_queued_run_that_asks_for_something_else_waits_in_another_lane(db: Database) -> None:
    """MT-D18: after it ran out of memory."""
    run, other = a_run(), digest_of("more")
    db.write(lambda tx: tx.runs.insert(run, "{}"))

    db.write(lambda tx: tx.runs.reshape(run.id, other))

    assert db.read(lambda tx: tx.runs.get(run.id)) == run._replace(shape=other)
    ready = db.read(lambda tx: tx.runs.ready(Lane(other, run.priority, run.project), after=None, limit=9))
    assert [one.id for one in ready] == [run.id]


def test_runs_are_found_by_the_beginning_of_their_id(db: Database) -> None:
    runs = [
        a_run(id=RunId("r-bbbbbbbbbbbb")),
        a_run(id=RunId("r-bbbbbbbbbbb9"), project="other"),
        a_run(id=RunId("r-bccccccccccc")),
    ]
    insert(db, *runs)

    assert db.read(lambda tx: tx.runs.by_prefix("r-bb", None, 10)) == [runs[1].id, runs[0].id]
    assert db.read(lambda tx: tx.runs.by_prefix("r-bb", "default", 10)) == [runs[0].id]
    assert db.read(lambda tx: tx.runs.by_prefix("r-", None, 2)) == [runs[1].id, runs[0].id]


def test_pages_go_from_the_newest_to_the_oldest_without_gaps(db: Database) -> None:
    """MT-D25."""
    runs = [a_run(created_at=float(n // 2)) for n in range(9)]
    insert(db, *runs)
    expected = [r.id for r in sorted(runs, key=lambda r: (r.created_at, r.id), reverse=True)]

    seen: list[RunId] = []
    after: tuple[float, RunId] | None = None

    def next_page(tx: Tx) -> list[Run]:
        return tx.runs.page(RunFilter(), after=after, limit=4)

    while page := db.read(next_page):
        seen += [run.id for run in page]
        after = (page[-1].created_at, page[-1].id)

    assert seen == expected


def test_a_filter_shows_only_what_fits(db: Database) -> None:
    group = Group(new_group_id(), "default", "sweep", 100.0)
    a = a_run(created_at=1.0, name="a", labels='{"team": "x", "it\'s": "q\\"uote"}')
    b = a_run(created_at=2.0, name="b", state=RunState.FAILED, group_id=group.id)
    c = a_run(created_at=3.0, name="b", project="other", state=RunState.RUNNING, group_id=GroupId("g-other"))
    insert(db, a, b, c)
    db.write(lambda tx: tx.groups.insert(group))

    assert listed(db, RunFilter()) == [c.id, b.id, a.id]
    assert listed(db, RunFilter(project="default")) == [b.id, a.id]
    assert listed(db, RunFilter(states=("running", "failed"))) == [c.id, b.id]
    assert listed(db, RunFilter(states=("running", "failed"), project="other")) == [c.id]
    assert listed(db, RunFilter(states=("succeeded",))) == []
    assert listed(db, RunFilter(name="b")) == [c.id, b.id]
    assert listed(db, RunFilter(name="b", states=("failed",), project="default")) == [b.id]
    assert listed(db, RunFilter(group=group.id)) == [b.id]
    assert listed(db, RunFilter(group="sweep", name="b", states=("failed",))) == [b.id]
    assert listed(db, RunFilter(group="sweep", project="other")) == []
    assert listed(db, RunFilter(label=("team", "x"))) == [a.id]
    assert listed(db, RunFilter(label=("it's", 'q"uote'))) == [a.id]
    assert listed(db, RunFilter(label=("team", "y"))) == []


def test_runs_are_found_by_who_submitted_them_and_instances_are_nobodys(db: Database) -> None:
    """NEW-06."""
    own, other = a_run(created_at=1.0), a_run(created_at=2.0, submitted_by="user:bob")
    insert(db, own, other, a_run(created_at=3.0, kind="service"))

    assert listed(db, RunFilter(submitted_by="user:ada")) == [own.id]


def test_groups_are_found_by_id_and_name_and_say_what_their_runs_were_given(db: Database) -> None:
    """NEW-05, NEW-07."""
    old, new = (Group(new_group_id(), "default", "sweep", at) for at in (1.0, 2.0))
    runs = [a_run(created_at=float(n), group_id=new.id, seed=n, metrics='{"x": 1}') for n in range(3)]
    spec = '{"params": {"lr": 0.1, "on": true, "name": "a"}, "train": {"lora": {"rank": 8}}}'

    def put(tx: Tx) -> None:
        for group in (old, new):
            tx.groups.insert(group)
        for run in runs:
            tx.runs.insert(run, spec if run.seed else "{}")

    db.write(put)
    assert db.read(lambda tx: tx.groups.find("sweep", None)) == [new, old]
    assert db.read(lambda tx: tx.groups.find(old.id, "default")) == [old]
    assert db.read(lambda tx: tx.groups.page(None, after=None, limit=9, text="sweep")) == [new, old]
    first = db.read(lambda tx: tx.groups.runs(new.id, after=None, limit=2))
    rest = db.read(lambda tx: tx.groups.runs(new.id, after=(first[1].created_at, first[1].id), limit=2))
    assert [one.id for one in (*first, *rest)] == [run.id for run in runs]
    given = db.read(lambda tx: tx.runs.settings([runs[0].id, runs[1].id]))
    assert (first[0].params, first[0].train) == given[runs[0].id] == (None, None)
    params, train = given[runs[1].id]
    assert json.loads(params or "") == {"lr": 0.1, "on": True, "name": "a"}
    assert json.loads(train or "") == {"lora": {"rank": 8}}


def test_a_nul_in_a_spec_keeps_nobody_from_reading_what_runs_were_given(db: Database) -> None:
    """ATK6-01: Postgres read no list of runs with their params where one spec held a NUL, in any text."""
    group = Group(new_group_id(), "default", "sweep", 1.0)
    run = a_run(group_id=group.id)
    given = {"text": "one\\u0000two", "nul": "one\0two"}
    spec = json.dumps({"resources": {"gpu": ["a\0b"]}, "params": given, "train": {"steps": 1}})

    def put(tx: Tx) -> None:
        tx.groups.insert(group)
        tx.runs.insert(run, spec)

    db.write(put)

    (listed_run,) = db.read(lambda tx: tx.groups.runs(group.id, after=None, limit=2))
    params, train = db.read(lambda tx: tx.runs.settings([run.id]))[run.id]
    assert (listed_run.params, listed_run.train) == (params, train)
    assert {*json.loads(params or "")} == {"text", "nul"}
    assert json.loads(train or "") == {"steps": 1}


def test_what_runs_of_a_group_measured_and_said_is_read_in_portions(db: Database) -> None:
    """ATK-31: the last words of ten thousand runs, and their metrics, were read at once."""
    group = Group(new_group_id(), "default", "sweep", 1.0)
    runs = [a_run(created_at=float(n), group_id=group.id, metrics='{"x": 1}') for n in range(3)]
    silent = a_run(created_at=1.5, group_id=group.id)
    failed = a_run(created_at=9.0, group_id=group.id, state=RunState.FAILED, detail="ü" * 3000)
    db.write(lambda tx: tx.groups.insert(group))
    insert(db, *runs, silent, failed)

    first = db.read(lambda tx: tx.groups.metrics(group.id, after=None, limit=2))
    rest = db.read(lambda tx: tx.groups.metrics(group.id, after=(1.0, runs[1].id), limit=2))
    assert [one.id for one in (*first, *rest)] == [run.id for run in runs]
    assert rest[0].metrics == '{"x": 1}'
    (ended,) = db.read(lambda tx: tx.groups.ended(group.id, after="", limit=9))
    assert (ended.id, ended.detail) == (failed.id, "ü" * 2000)


def test_a_filtered_page_goes_on_after_the_last(db: Database) -> None:
    runs = [
        a_run(created_at=float(n), project=f"p{n % 3}", state=[RunState.QUEUED, RunState.HELD][n % 2])
        for n in range(12)
    ]
    insert(db, *runs)
    where = RunFilter(states=("queued", "held"))
    first = db.read(lambda tx: tx.runs.page(where, after=None, limit=5))
    after = (first[-1].created_at, first[-1].id)
    rest = db.read(lambda tx: tx.runs.page(where, after=after, limit=50))

    assert [run.created_at for run in first + rest] == [float(n) for n in reversed(range(12))]


def test_lanes_are_each_shape_priority_and_project_with_a_queued_run(db: Database) -> None:
    low, high = sorted([SHAPE, digest_of("other shape")])
    expected = [
        Lane(low, 9, "a"),
        Lane(low, 9, "b"),
        Lane(low, -1, "a"),
        Lane(high, 0, "c"),
    ]
    queued = [a_run(shape=s, priority=p, project=name) for s, p, name in expected for _ in range(3)]
    insert(db, *queued, a_run(state=RunState.HELD, project="held"), a_run(state=RunState.RUNNING))

    assert db.read(lambda tx: tx.runs.lanes()) == expected


def test_an_empty_queue_has_no_lanes(db: Database) -> None:
    assert db.read(lambda tx: tx.runs.lanes()) == []
    assert db.read(lambda tx: tx.runs.ready(Lane(SHAPE, 0, "default"), after=None, limit=5)) == []


def test_a_lane_gives_its_oldest_first_and_goes_on_after_the_last(db: Database) -> None:
    runs = [a_run(ready_at=float(n // 2)) for n in range(6)]
    insert(db, *runs, a_run(priority=1), a_run(state=RunState.RUNNING))
    lane = Lane(SHAPE, 0, "default")
    expected = sorted(ReadyRun(run.ready_at, run.id) for run in runs)

    first = db.read(lambda tx: tx.runs.ready(lane, after=None, limit=3))
    rest = db.read(lambda tx: tx.runs.ready(lane, after=first[-1], limit=30))

    assert first + rest == expected


def test_held_runs_and_stops_come_due(db: Database) -> None:
    held = a_run(state=RunState.HELD, not_before=50.0)
    later = a_run(state=RunState.HELD, not_before=51.0)
    forever = a_run(state=RunState.HELD, hold_reason="dependency")
    stopping = a_run(state=RunState.STOPPING, stop_deadline=40.0)
    over = a_run(state=RunState.CANCELLED, stop_deadline=40.0)
    insert(db, held, later, forever, stopping, over)

    assert db.read(lambda tx: tx.runs.due_held(50.0, 10)) == [held.id]
    assert db.read(lambda tx: tx.runs.due_held(60.0, 1)) == [held.id]
    assert db.read(lambda tx: tx.runs.due_stops(39.9, 10)) == []
    assert db.read(lambda tx: tx.runs.due_stops(40.0, 10)) == [stopping.id]


def test_the_wall_limit_counts_earlier_attempts_and_the_present_lease(db: Database) -> None:
    run = a_run(state=RunState.RUNNING, wall_limit_s=100.0, ran_s=60.0)
    free = a_run(state=RunState.RUNNING)
    insert(db, run, free)
    db.each((run, free), lambda tx, r: tx.leases.insert(a_lease(r, granted_at=1000.0)))

    assert db.read(lambda tx: tx.runs.over_wall(1039.0, 0.0, 10)) == []
    assert db.read(lambda tx: tx.runs.over_wall(1040.0, 0.0, 10)) == [run.id]
    assert db.read(lambda tx: tx.runs.over_wall(1040.0, 1001.0, 10)) == []


def test_a_lease_without_activity_is_stalled(db: Database) -> None:
    run = a_run(state=RunState.RUNNING, stall_limit_s=10.0)
    patient = a_run(state=RunState.RUNNING)
    leases = [a_lease(run, active_at=100.0), a_lease(patient, active_at=0.0)]
    insert(db, run, patient)
    db.each(leases, lambda tx, lease: tx.leases.insert(lease))

    assert db.read(lambda tx: tx.runs.stalled(109.0, 10)) == []
    assert db.read(lambda tx: tx.runs.stalled(110.0, 10)) == [leases[0].id]


def test_only_runs_that_still_have_logs_are_due_for_retention(db: Database) -> None:
    logged = a_run(state=RunState.SUCCEEDED, ended_at=50.0)
    silent = a_run(state=RunState.SUCCEEDED, ended_at=40.0)
    running = a_run(state=RunState.RUNNING)
    insert(db, logged, silent, running)
    segments = [Segment(run.id, 1, 0, "log", 0, 10, 1, 5.0) for run in (logged, running)]
    db.each(segments, lambda tx, segment: tx.logs.put(segment))
    db.write(lambda tx: tx.runs.save(logged))

    assert db.read(lambda tx: tx.runs.ended_before(50.0, 10)) == []
    assert db.read(lambda tx: tx.runs.ended_before(51.0, 10)) == [logged.id]
    assert db.write(lambda tx: tx.logs.delete(logged.id)) == 1
    assert db.read(lambda tx: tx.runs.ended_before(51.0, 10)) == []


def test_counts_leave_out_what_is_final(db: Database) -> None:
    insert(db, a_run(), a_run(), a_run(state=RunState.HELD), a_run(state=RunState.FAILED))

    assert sorted(db.read(lambda tx: tx.runs.counts())) == [("held", 1), ("queued", 2)]


def test_every_run_is_reached_by_id(db: Database) -> None:
    runs = sorted((a_run() for _ in range(5)), key=lambda run: run.id)
    insert(db, *runs)

    assert db.read(lambda tx: tx.runs.page_by_id(None, 2)) == runs[:2]
    assert db.read(lambda tx: tx.runs.page_by_id(runs[1].id, 10)) == runs[2:]


def test_an_identity_is_unique_within_a_manifest_and_generation(db: Database) -> None:
    insert(db, a_run(manifest="m"), a_run(manifest="m", generation=2), a_run(), a_run())

    with pytest.raises(Conflict):
        insert(db, a_run(manifest="m"))


def test_submissions_groups_and_shapes_come_back(db: Database) -> None:
    group = Group(new_group_id(), "default", "sweep", 1.0)
    submission = Submission("user:ada", "request-1", digest_of("body"), group.id, '["r-x"]', 2.0)
    run = a_run(group_id=group.id)

    def unit(tx: Tx) -> None:
        tx.runs.insert(run, "{}")
        tx.groups.insert(group)
        assert tx.runs.put_submission(submission)
        tx.runs.put_shape(SHAPE, "{}")
        tx.runs.put_shape(SHAPE, "{}")

    db.write(unit)

    assert db.read(lambda tx: tx.groups.get(group.id)) == group
    assert listed(db, RunFilter(group=group.id)) == [run.id]
    assert db.read(lambda tx: tx.runs.submission("user:ada", "request-1")) == submission
    assert db.read(lambda tx: tx.runs.submission("user:bob", "request-1")) is None
    assert db.read(lambda tx: tx.runs.shape(SHAPE)) == "{}"
    assert db.read(lambda tx: tx.runs.shape(digest_of("none"))) is None
    later = submission._replace(run_ids='["r-y"]')
    assert not db.write(lambda tx: tx.runs.put_submission(later))
    assert db.read(lambda tx: tx.runs.submission("user:ada", "request-1")) == submission
