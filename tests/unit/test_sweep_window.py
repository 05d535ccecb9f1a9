"""Promise 6 under a clock of our own: while the server was blind, silence proves nothing (FL-D01)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.lease_sweeping import POLICY, TICK_S, SweptHost
from support.memory_database import refuse

from corral.core.leases.outcomes import LeaseEnder, LeaseReport
from corral.core.queue.grants import Grant
from corral.core.runs.cancel import cancel
from corral.core.runs.limits import halt_over_wall, stop_stalled
from corral.domain.errors import StoreUnavailable
from corral.domain.ids import RunId
from corral.domain.runs.reasons import Reason


@pytest.fixture
def fleet() -> Iterator[SweptHost]:
    made = SweptHost()
    yield made
    made.db.end()


def running(fleet: SweptHost) -> tuple[RunId, Grant]:
    """A run whose host has beaten once, watched for a whole lease."""
    run_id = fleet.submit()
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(8, beating=grant)
    return run_id, grant


def test_a_host_that_falls_silent_is_given_up_after_one_lease(fleet: SweptHost) -> None:
    """FL-D41, FL-D42: with no set-up, and within a stated time."""
    run_id, grant = running(fleet)
    fleet.beat(grant)
    fleet.tick(5)
    assert fleet.run(run_id).state == "running"
    fleet.tick(1)
    assert (fleet.run(run_id).state, fleet.run(run_id).used_infrastructure) == ("queued", 1)


def test_a_host_that_beats_keeps_its_run_for_ever(fleet: SweptHost) -> None:
    run_id, grant = running(fleet)
    fleet.tick(1000, beating=grant)
    assert (fleet.run(run_id).state, fleet.run(run_id).attempt) == ("running", 1)


def restarted(fleet: SweptHost) -> None:
    fleet.clock.advance(3600)
    fleet.restart()


def database_away(fleet: SweptHost) -> None:
    fleet.db.on_write = refuse
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            fleet.tick()
    fleet.db.on_write = None


def full_disk(fleet: SweptHost) -> None:
    """Shorter than the gap that is noticed by itself: it counts because the tick was not committed."""
    fleet.db.on_write = refuse
    fleet.clock.advance(TICK_S)
    with pytest.raises(StoreUnavailable):
        fleet.sweep()
    fleet.db.on_write = None


def slept(fleet: SweptHost) -> None:
    """The machine slept: its monotonic clock stood still."""
    fleet.clock.jump(8 * 3600)


def stopped_process(fleet: SweptHost) -> None:
    fleet.clock.advance(600)


def jumped_forward(fleet: SweptHost) -> None:
    fleet.clock.jump(3600)


def jumped_backward(fleet: SweptHost) -> None:
    fleet.clock.jump(-3600)


BLIND = [restarted, database_away, full_disk, slept, stopped_process, jumped_forward, jumped_backward]


@pytest.mark.parametrize("blind", BLIND)
def test_whatever_blinds_the_server_starts_the_wait_anew(
    fleet: SweptHost, blind: Callable[[SweptHost], None]
) -> None:
    run_id, grant = running(fleet)
    blind(fleet)
    fleet.sweep()
    fleet.tick(5)
    assert fleet.run(run_id).state == "running"
    # Back within the new wait, nothing was lost.
    assert fleet.beat(grant).action == "continue"
    fleet.tick(5)
    assert (fleet.run(run_id).state, fleet.run(run_id).attempt) == ("running", 1)


@pytest.mark.parametrize("blind", BLIND)
def test_a_host_that_stays_silent_is_given_up_after_the_new_wait(
    fleet: SweptHost, blind: Callable[[SweptHost], None]
) -> None:
    run_id, _ = running(fleet)
    blind(fleet)
    fleet.sweep()
    fleet.tick(7)
    assert fleet.run(run_id).state == "queued"


@pytest.mark.parametrize("blind", BLIND)
def test_being_blind_again_and_again_never_costs_a_run(
    fleet: SweptHost, blind: Callable[[SweptHost], None]
) -> None:
    run_id, _ = running(fleet)
    for _ in range(6):
        blind(fleet)
        fleet.sweep()
        fleet.tick(4)
    assert (fleet.run(run_id).state, fleet.run(run_id).attempt) == ("running", 1)


def test_a_host_that_returns_with_the_newest_epoch_keeps_its_work_and_its_budget(fleet: SweptHost) -> None:
    run_id, grant = running(fleet)
    fleet.tick(8)
    assert (fleet.run(run_id).state, fleet.run(run_id).used_infrastructure) == ("queued", 1)
    assert fleet.beat(grant).action == "continue"
    run = fleet.run(run_id)
    assert (run.state, run.used_infrastructure, run.attempt) == ("running", 0, 1)


def test_a_host_that_returns_after_another_claimed_has_lost_it(fleet: SweptHost) -> None:
    """FL-D29."""
    run_id, old = running(fleet)
    fleet.tick(8)
    new = fleet.claim()
    assert new.lease.epoch > old.lease.epoch
    assert fleet.beat(old).action == "lost"
    assert fleet.beat(new).action == "continue"
    assert fleet.run(run_id).attempt == 2


def test_a_stalled_run_that_ran_out_unbeaten_gets_its_charge_back_when_it_returns(fleet: SweptHost) -> None:
    """Charged as stalled, taken away as never beaten: what is given back is what was charged."""
    fleet.tick(8)
    run_id = fleet.submit(stall_s=3)
    grant = fleet.claim()
    fleet.tick(1)
    assert fleet.run(run_id).state == "yielding"
    fleet.tick(2)
    assert (fleet.run(run_id).state, fleet.run(run_id).used_infrastructure) == ("queued", 1)
    fleet.beat(grant)
    assert (fleet.run(run_id).state, fleet.run(run_id).used_infrastructure) == ("running", 0)


def test_a_tick_that_takes_long_to_commit_gives_nobody_up(fleet: SweptHost) -> None:
    """The database hung during the tick itself: nobody could beat meanwhile."""
    run_id, grant = running(fleet)
    fleet.beat(grant)
    fleet.clock.advance(TICK_S)
    fleet.db.on_write = lambda: fleet.clock.advance(60)
    fleet.sweep()
    fleet.db.on_write = None
    assert fleet.run(run_id).state == "running"


def test_a_sleep_in_the_middle_of_a_sweep_gives_nobody_up(fleet: SweptHost) -> None:
    run_id, grant = running(fleet)
    fleet.beat(grant)
    fleet.clock.advance(TICK_S)
    fleet.db.on_write = lambda: fleet.clock.jump(8 * 3600)
    fleet.sweep()
    fleet.db.on_write = None
    assert fleet.run(run_id).state == "running"


def test_a_run_that_uses_up_its_wall_limit_is_halted(fleet: SweptHost) -> None:
    """FL-D08, for a worker that does not keep the limit itself."""
    run_id = fleet.submit(wall_s=100)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(19, beating=grant)
    assert fleet.run(run_id).state == "running"
    fleet.tick(3, beating=grant)
    assert (fleet.run(run_id).state, fleet.run(run_id).stop_reason) == ("halting", "wall_limit")
    assert fleet.beat(grant).action == "stop"
    fleet.tick(11, beating=grant)
    assert (fleet.run(run_id).state, fleet.run(run_id).reason) == ("failed", "wall_limit")


@pytest.mark.parametrize("blind", BLIND)
def test_the_wall_limit_counts_no_time_that_the_server_did_not_see(
    fleet: SweptHost, blind: Callable[[SweptHost], None]
) -> None:
    run_id = fleet.submit(wall_s=200)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(8, beating=grant)
    blind(fleet)
    fleet.beat(grant)
    fleet.sweep()
    fleet.tick(10, beating=grant)
    assert fleet.run(run_id).state == "running"


def test_a_clock_jump_does_not_turn_a_lost_host_into_a_used_up_wall_limit(fleet: SweptHost) -> None:
    run_id = fleet.submit(wall_s=600)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(8, beating=grant)
    fleet.clock.jump(3600)
    fleet.sweep()
    fleet.tick(8)
    assert fleet.run(run_id).state == "queued"


def test_a_run_that_shows_no_life_is_tried_again_elsewhere(fleet: SweptHost) -> None:
    run_id = fleet.submit(stall_s=60)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(11, beating=grant, active=False)
    assert fleet.run(run_id).state == "running"
    fleet.tick(2, beating=grant, active=False)
    assert (fleet.run(run_id).state, fleet.run(run_id).stop_reason) == ("yielding", "stalled")


def test_a_run_that_stalls_without_budget_is_halted(fleet: SweptHost) -> None:
    run_id = fleet.submit(stall_s=60, lost=0)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(13, beating=grant, active=False)
    assert (fleet.run(run_id).state, fleet.run(run_id).stop_reason) == ("halting", "stalled")


@pytest.mark.parametrize("blind", BLIND)
def test_a_run_that_is_alive_does_not_stall_because_the_server_was_blind(
    fleet: SweptHost, blind: Callable[[SweptHost], None]
) -> None:
    run_id = fleet.submit(stall_s=60)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(8, beating=grant)
    blind(fleet)
    fleet.sweep()
    fleet.tick(2)
    fleet.tick(20, beating=grant)
    assert fleet.run(run_id).state == "running"


def test_a_stall_that_was_seen_on_an_old_lease_does_not_stop_the_new_one(fleet: SweptHost) -> None:
    """Between the sweeper's look and its act the run was lost and claimed again."""
    run_id = fleet.submit(stall_s=60)
    old = fleet.claim()
    fleet.tick(14)
    assert fleet.run(run_id).state == "queued"
    fleet.claim()
    fleet.db.now_write(lambda tx: stop_stalled(tx, old.lease.id, now=fleet.clock.now(), policy=POLICY))
    assert fleet.run(run_id).state == "running"


def test_a_lease_that_showed_life_since_the_sweepers_look_is_not_stopped(fleet: SweptHost) -> None:
    run_id = fleet.submit(stall_s=60)
    grant = fleet.claim()
    fleet.clock.advance(61)
    fleet.beat(grant)
    fleet.db.now_write(lambda tx: stop_stalled(tx, grant.lease.id, now=fleet.clock.now(), policy=POLICY))
    assert fleet.run(run_id).state == "running"


@pytest.mark.parametrize("wall_s", [None, 60.0])
def test_a_run_that_was_claimed_anew_since_the_sweepers_look_is_not_halted(
    fleet: SweptHost, wall_s: float | None
) -> None:
    run_id = fleet.submit(wall_s=wall_s)
    fleet.claim()
    fleet.db.now_write(lambda tx: halt_over_wall(tx, run_id, now=fleet.clock.now(), since=0.0, policy=POLICY))
    assert fleet.run(run_id).state == "running"


def test_a_clock_that_jumps_back_does_not_put_off_the_end_of_a_stop(fleet: SweptHost) -> None:
    run_id, grant = running(fleet)
    fleet.db.now_write(
        lambda tx: cancel(tx, run_id, reason="", actor="user:ada", now=fleet.clock.now(), policy=POLICY)
    )
    fleet.clock.jump(-3600)
    fleet.tick(40, beating=grant)
    assert fleet.run(run_id).state == "cancelled"


def test_a_clock_that_jumps_back_does_not_put_off_a_retry(fleet: SweptHost) -> None:
    run_id, grant = running(fleet)
    report = LeaseReport("fail", Reason.CODE_ERROR, ran_s=1.0)
    fleet.db.now_write(
        lambda tx: LeaseEnder(POLICY, fleet.shares).end(tx, grant.lease.key, report, now=fleet.clock.now())
    )
    assert fleet.run(run_id).state == "held"
    fleet.clock.jump(-3600)
    fleet.tick(40)
    assert fleet.run(run_id).state == "queued"
