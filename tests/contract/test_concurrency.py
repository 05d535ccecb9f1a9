"""`max_running` of a group: never more than that have a place, and the others come in order."""

from __future__ import annotations

from functools import partial

import pytest

from contract.conftest import Database
from contract.plans import Plan, let_in, new
from corral.core.runs.hold import hold, let_go
from corral.domain.ids import RunId
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.states import FINAL, RunEvent, RunState
from corral.store.transaction import Tx


@pytest.fixture
def plan(db: Database) -> Plan:
    return Plan(db)


def placed(plan: Plan, ids: list[RunId]) -> list[RunId]:
    runs = [plan.run(run_id) for run_id in ids]
    return [run.id for run in runs if run.state not in (*FINAL, RunState.HELD)]


def test_the_first_ones_are_queued_and_the_others_come_in_order(plan: Plan) -> None:
    """FL-D03: each change is an event."""
    ids = plan.submit(*(new() for _ in range(5)), max_running=2)

    assert plan.states(ids) == ["queued", "queued", "held", "held", "held"]
    assert plan.run(ids[2]).hold_reason == "concurrency"
    plan.finish(ids[1])
    assert placed(plan, ids) == [ids[0], ids[2]]
    plan.fail(ids[0])
    assert placed(plan, ids) == [ids[2], ids[3]]
    plan.cancel(ids[2])
    assert placed(plan, ids) == [ids[3], ids[4]]
    assert plan.events(ids[4]) == ["submit", "release"]


def test_a_retry_keeps_its_place_also_between_two_tries(plan: Plan) -> None:
    ids = plan.submit(*(new() for _ in range(2)), max_running=1)
    plan.start(ids[0])

    plan.step(ids[0], RunEvent.REQUEUE)
    plan.step(ids[0], RunEvent.HOLD, hold_reason=HoldKind.BACKOFF.value, not_before=plan.clock.wall + 30)
    plan.sweep()

    assert plan.states(ids) == ["held", "held"]
    plan.clock.advance(60)
    plan.sweep()
    assert plan.states(ids) == ["queued", "held"]
    plan.finish(ids[0])
    assert plan.states(ids) == ["succeeded", "queued"]


def test_who_is_held_by_somebody_gives_its_place_away(plan: Plan) -> None:
    ids = plan.submit(*(new() for _ in range(2)), max_running=1)

    plan.step(ids[0], RunEvent.HOLD, hold_reason="held by ada")

    assert plan.states(ids) == ["held", "queued"]


def test_who_is_held_between_two_tries_gives_its_place_away_too(plan: Plan) -> None:
    ids = plan.submit(*(new() for _ in range(2)), max_running=1)
    plan.start(ids[0])
    plan.step(ids[0], RunEvent.REQUEUE)
    plan.step(ids[0], RunEvent.HOLD, hold_reason=HoldKind.BACKOFF.value, not_before=plan.clock.wall + 30)

    plan.db.write(lambda tx: hold(tx, ids[0], actor="user:ada", now=plan.now()))

    assert plan.states(ids) == ["held", "queued"]
    plan.db.write(lambda tx: let_go(tx, ids[0], actor="user:ada", now=plan.now()))
    assert plan.run(ids[0]).hold_reason == "concurrency"


def test_cancelling_one_that_waits_lets_nobody_in(plan: Plan) -> None:
    ids = plan.submit(*(new() for _ in range(3)), max_running=1)

    plan.cancel(ids[1])

    assert plan.states(ids) == ["queued", "cancelled", "held"]


def test_parents_and_places_both_count(plan: Plan) -> None:
    (first,) = plan.submit(new("first"))
    ids = plan.submit(new(after=[first]), new(), new(after=[first]), max_running=1)

    assert plan.states(ids) == ["held", "queued", "held"]
    plan.finish(first)
    assert [plan.run(one).hold_reason for one in ids] == ["concurrency", None, "concurrency"]
    plan.finish(ids[1])
    assert plan.states(ids) == ["queued", "succeeded", "held"]


def test_ends_at_once_never_give_a_place_twice(plan: Plan) -> None:
    """On Postgres these are transactions side by side, as of two servers."""
    ids = plan.submit(*(new() for _ in range(12)), max_running=4)
    while running := placed(plan, ids):
        assert len(running) == min(4, sum(state not in FINAL for state in plan.states(ids)))
        for one in running:
            if plan.run(one).state is RunState.QUEUED:
                plan.start(one)
        now = plan.now()
        plan.at_once(*(partial(end_unit, run_id=one, now=now) for one in running[:3]))
        plan.sweep()
    assert set(plan.states(ids)) == {"succeeded"}
    assert all(plan.events(one).count("release") <= 1 for one in ids)


def end_unit(tx: Tx, run_id: RunId, now: float) -> None:
    Plan._step(tx, run_id, RunEvent.FINISH, now, {"ended_at": now})


def test_the_sweeper_lets_in_who_was_missed(plan: Plan) -> None:
    done = plan.submitted(*(new() for _ in range(3)), max_running=1)

    def behind_its_back(tx: Tx) -> None:
        run = tx.runs.lock(done.ids[0])
        assert run is not None
        tx.runs.save(run._replace(state=RunState.CANCELLED, ended_at=1.0))

    plan.db.write(behind_its_back)
    plan.sweep()

    assert plan.states(list(done.ids)) == ["cancelled", "queued", "held"]
    plan.db.write(lambda tx: let_in(tx, done.group_id, now=plan.now()))  # type: ignore[arg-type]
    assert plan.states(list(done.ids)) == ["cancelled", "queued", "held"]
