"""FL-D33: a host that fails run after run is set aside; a run that loses host after host is stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.placement_scene import PlacementScene, machine

from corral.core.hosts.faults import FIRST_S, MOST_FAULTS, QUICK_S
from corral.core.queue.roster import AGAIN_S
from corral.core.queue.why import HostStanding
from corral.core.schedules.fire import name_of_time
from corral.domain.ids import new_schedule_id
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import RetryLimits
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.domain.schedules import MissedTimes, Overlap, Schedule


@pytest.fixture
def ground() -> Iterator[PlacementScene]:
    made = PlacementScene()
    made.host("bad")
    made.host("good")
    yield made
    made.db.end()


def fail(
    ground: PlacementScene,
    name: str,
    *,
    by: str | None = None,
    ran_s: float = 1.0,
    reason: Reason = Reason.CODE_ERROR,
) -> Run:
    """A user's run, of each work another user's unless said otherwise."""
    run_id = ground.submit(name=name, by=by or f"user:{name}")
    ground.end(ground.grant("bad"), "fail", reason, ran_s=ran_s)
    return ground.run(run_id)


def test_three_different_works_that_fail_at_once_set_the_host_aside(ground: PlacementScene) -> None:
    """FL-C15, FL-D33."""
    fail(ground, "one")
    fail(ground, "two", reason=Reason.ENVIRONMENT)
    assert ground.row("bad").set_aside_until is None
    last = fail(ground, "three")
    row = ground.row("bad")
    assert row.set_aside_until == ground.clock.now() + FIRST_S
    assert f"{last.id} failed within 20 s (code_error)" in (row.set_aside_why or "")
    event = ground.events(last.id)[-1]
    assert event.type == "host_set_aside"
    assert json.loads(event.data)["host"] == "bad"
    entry = ground.db.now_read(lambda tx: tx.audit.last())
    assert entry is not None
    assert (entry.action, entry.target) == ("host.set_aside", "host:bad")


def test_one_user_alone_cannot_set_a_host_aside(ground: PlacementScene) -> None:
    """SEC-09: whatever one submitter lets fail there counts once."""
    for name in ("one", "two", "three", "four"):
        fail(ground, name, by="user:mallory")
    assert (ground.row("bad").strikes, ground.row("bad").set_aside_until) == (1, None)
    fail(ground, "five", by="user:ada")
    assert ground.row("bad").set_aside_until is None
    fail(ground, "six", by="user:grace")
    assert ground.row("bad").set_aside_until is not None


def test_one_user_cannot_set_a_host_aside_by_schedules(ground: PlacementScene) -> None:
    """ATK-09: a run of a schedule counts for who made the schedule, and for nobody once that is gone."""

    def scheduled(name: str, made_by: str, *, removed: bool = False) -> None:
        schedule = Schedule(
            id=new_schedule_id(),
            project="default",
            name=name,
            spec="{}",
            cron="0 3 * * *",
            every_s=None,
            timezone="UTC",
            missed=MissedTimes.ONCE,
            overlap=Overlap.SKIP,
            created_at=ground.clock.now(),
            created_by=made_by,
        )
        ground.db.now_write(lambda tx: tx.schedules.insert(schedule))
        ground.submit(name=name, by=name_of_time(schedule)[0], schedule_id=schedule.id)
        lease = ground.grant("bad")
        if removed:
            ground.db.now_write(lambda tx: tx.schedules.delete(schedule.id))
        ground.end(lease, "fail", Reason.CODE_ERROR, ran_s=1.0)

    for name in ("one", "two", "three"):
        scheduled(name, "user:mallory")
        scheduled(f"{name}-gone", "user:mallory", removed=True)
    fail(ground, "four", by="user:mallory")
    assert (ground.row("bad").strikes, ground.row("bad").set_aside_until) == (1, None)
    scheduled("five", "user:ada")
    scheduled("six", "user:grace")
    assert ground.row("bad").set_aside_until is not None


def test_strikes_that_an_older_server_noted_still_count(ground: PlacementScene) -> None:
    """SEC-09: it noted works alone."""
    ground.save("bad", strikes=2, struck_by='[null,["default/one","default/two"]]')
    fail(ground, "two")
    assert ground.row("bad").strikes == 2
    fail(ground, "three")
    assert ground.row("bad").set_aside_until is not None


def test_a_host_that_is_set_aside_gets_nothing_until_its_time_is_over(ground: PlacementScene) -> None:
    for name in ("one", "two", "three"):
        fail(ground, name)
    run_id = ground.submit()
    assert ground.claim("bad") == []
    ground.clock.advance(FIRST_S)
    assert ground.claim("bad") == [run_id]


def test_each_further_failure_sets_it_aside_for_longer_and_a_finish_clears_it(ground: PlacementScene) -> None:
    for name in ("one", "two", "three"):
        fail(ground, name)
    ground.clock.advance(FIRST_S)
    ground.claim("good", most=0)
    fail(ground, "four")
    assert ground.row("bad").set_aside_until == ground.clock.now() + 2 * FIRST_S
    ground.clock.advance(2 * FIRST_S)
    ground.submit()
    ground.finish(ground.grant("bad"))
    row = ground.row("bad")
    assert (row.strikes, row.struck_by, row.set_aside_until) == (0, None, None)


@pytest.mark.parametrize(
    ("names", "ran_s", "reason"),
    [
        # A sweep with a mistyped option says nothing about the host.
        (["same"] * 5, 1.0, Reason.CODE_ERROR),
        (["one", "two", "three"], QUICK_S + 1, Reason.CODE_ERROR),
        (["one", "two", "three"], 1.0, Reason.BAD_DATA),
        (["one", "two", "three"], 1.0, Reason.OUT_OF_MEMORY),
    ],
)
def test_what_is_the_runs_own_fault_is_not_held_against_the_host(
    ground: PlacementScene, names: list[str], ran_s: float, reason: Reason
) -> None:
    for name in names:
        fail(ground, name, ran_s=ran_s, reason=reason)
    assert ground.row("bad").set_aside_until is None


def test_the_last_host_is_not_set_aside_for_what_runs_did(ground: PlacementScene) -> None:
    ground.save("good", draining=True)
    for name in ("one", "two", "three", "four"):
        fail(ground, name)
    assert ground.row("bad").set_aside_until is None


def test_leases_lost_in_one_silence_are_one_strike(ground: PlacementScene) -> None:
    for _ in range(3):
        ground.submit()
    ground.lose(*ground.poll("bad", most=3).grants)
    assert ground.row("bad").strikes == 1


def test_three_silences_set_even_the_last_host_aside_and_a_return_clears_them(ground: PlacementScene) -> None:
    ground.save("good", draining=True)
    for n in range(3):
        ground.submit(name=f"run-{n}")
        grant = ground.grant("bad")
        ground.lose(grant)
        ground.clock.advance(31)
    assert ground.row("bad").set_aside_until is not None
    ground.beat(grant)
    assert ground.run(grant.run.id).state is RunState.RUNNING
    assert (ground.row("bad").strikes, ground.row("bad").set_aside_until) == (0, None)


def test_a_run_that_loses_three_hosts_is_stopped_and_says_so(ground: PlacementScene) -> None:
    """FL-D33."""
    ground.host("third")
    run_id = ground.submit(lost=9)
    for name in ("bad", "good", "third"):
        assert ground.run(run_id).state is RunState.QUEUED
        grant = ground.grant(name)
        assert grant.run.id == run_id
        ground.lose(grant)
    run = ground.run(run_id)
    assert (run.state, run.reason, run.lost_hosts) == (RunState.FAILED, Reason.POISON, 3)
    assert run.detail == "3 different hosts were lost while they ran it"


def test_the_same_host_again_is_a_matter_of_the_budget_alone(ground: PlacementScene) -> None:
    run_id = ground.submit(lost=9)
    for _ in range(2):
        ground.lose(ground.grant("bad"))
        ground.clock.advance(31)
    ground.save("bad", strikes=0, struck_by=None)
    ground.lose(ground.grant("bad"))
    run = ground.run(run_id)
    assert (run.state, run.lost_hosts) == (RunState.QUEUED, 1)
    assert run.used.infrastructure == 3


def test_a_host_that_returns_was_not_lost(ground: PlacementScene) -> None:
    run_id = ground.submit()
    grant = ground.grant("bad")
    ground.lose(grant)
    assert ground.run(run_id).lost_hosts == 1
    ground.beat(grant)
    assert ground.run(run_id).lost_hosts == 0


def test_losses_preemptions_and_errors_are_counted_apart(ground: PlacementScene) -> None:
    """FL-D33."""
    run_id = ground.submit()
    ground.lose(ground.grant("bad"))
    ground.end(ground.grant("good"), "stopped", Reason.RELEASED, ran_s=5.0)
    used = ground.run(run_id).used
    assert (used.infrastructure, used.memory, used.code) == (1, 0, 0)


def test_a_fault_that_a_worker_reports_sets_its_host_aside_until_it_reports_none(
    ground: PlacementScene,
) -> None:
    """STO-01: the reason is shown, and it comes back by itself."""
    run_id = ground.submit()
    ground.report("bad", replace(machine(), fault="it cannot write to /home: No space left on device"))
    assert ground.claim("bad") == []
    assert "No space left on device" in (ground.row("bad").set_aside_why or "")
    standing = ground.why(run_id)["bad"]
    assert standing.place is HostStanding.SET_ASIDE
    assert "No space left on device" in standing.reasons[0]
    ground.report("bad", machine())
    assert ground.claim("bad") == [run_id]
    assert ground.row("bad").set_aside_why is None


def test_a_fault_of_the_host_is_free_but_not_for_ever(ground: PlacementScene) -> None:
    """STO-01: no budget pays; a run that meets nothing else in the end fails, and says what it met."""
    run_id = ground.submit(lost=0)
    for _ in range(MOST_FAULTS):
        assert ground.run(run_id).state is RunState.QUEUED
        ground.end(ground.grant("bad"), "fail", Reason.HOST_FAULT, ran_s=0.0)
        assert ground.claim("bad") == [], "the same host is not asked again at once"
        assert ground.row("bad").strikes == 0
        ground.clock.advance(AGAIN_S)
    run = ground.run(run_id)
    assert (run.state, run.reason, run.used) == (RunState.FAILED, Reason.POISON, RetryLimits(0, 0, 0))
    assert f"{MOST_FAULTS} times a host could not run it" in (run.detail or "")
