"""Promise 6 under a clock of our own: for as long as the server was blind, silence proves nothing (FL-D01)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clockwork import Database, ManualClock, refuse

from corral.core.beat import Beat, beat
from corral.core.claim import Claim, ClaimAsk, Grant
from corral.core.lanes import Lanes
from corral.core.outcome import Ender, Report
from corral.core.policy import Policy
from corral.core.shapes import Shapes
from corral.core.shares import Shares
from corral.core.stop import cancel, halt_over_wall, stop_stalled
from corral.core.submit import NewRun, submit
from corral.core.sweep import Sweeper
from corral.domain.canonical import canonical
from corral.domain.capability import Requirements
from corral.domain.errors import StoreUnavailable
from corral.domain.host import Host
from corral.domain.ids import Digest, RunId, new_host_id
from corral.domain.reasons import Reason, Retries
from corral.domain.run import Run

POLICY = Policy(lease_s=30.0, first_beat_s=10.0)
TICK_S = 5.0


class Fleet:
    """One host, one run, one sweeper, one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.db = Database()
        self.shares = Shares()
        self.lanes = Lanes()
        self.restart()
        self.host = Host(new_host_id(), "box", None, None, 4, None, False, None, 0.0)
        self.db.now_write(lambda tx: tx.hosts.insert(self.host))
        self._requests = 0

    def restart(self) -> None:
        self.sweeper = Sweeper(self.db, self.clock, POLICY, self.shares)

    def submit(self, *, wall_s: float | None = None, stall_s: float | None = None, lost: int = 3) -> RunId:
        new = NewRun(
            project="default",
            name="train",
            kind="command",
            seed=None,
            spec="{}",
            identity=Digest("0" * 64),
            requirements=Requirements(),
            priority=0,
            labels={},
            retries=Retries(infrastructure=lost, code=1),
            wall_limit_s=wall_s,
            stall_limit_s=stall_s,
            grace_s=5.0,
            code=None,
            inputs={},
            secrets=(),
        )
        self._requests += 1
        request = f"submit-{self._requests}"
        done = self.db.now_write(
            lambda tx: submit(
                tx, [new], request_id=request, group=None, principal="user:ada", now=self.clock.now()
            )
        )
        return done.ids[0]

    def claim(self) -> Grant:
        self._requests += 1
        ask = ClaimAsk(
            host_id=self.host.id,
            boot_id="boot-one",
            request_id=f"claim-{self._requests}",
            slots=4,
            max_leases=1,
            draining=False,
            capability=canonical({"hostname": "box", "os": "linux", "arch": "x86_64"}),
            holding=None,
        )
        self.lanes.reconcile(self.db.now_read(lambda tx: tx.runs.lanes()))
        unit = Claim(self.lanes, Shapes(), self.shares, POLICY, ask, self.clock.now)
        (grant,) = self.db.now_write(unit).grants
        return grant

    def beat(self, grant: Grant, *, active_s_ago: float | None = 0.0) -> Beat:
        return self.db.now_write(
            lambda tx: beat(
                tx,
                grant.lease.id,
                grant.lease.epoch,
                host_id=self.host.id,
                progress="{}",
                sample="{}",
                active_s_ago=active_s_ago,
                now=self.clock.now(),
                policy=POLICY,
            )
        )

    def tick(self, count: int = 1, *, beating: Grant | None = None, active: bool = True) -> None:
        for n in range(count):
            self.clock.advance(TICK_S)
            if beating is not None and n % 2 == 0:
                self.beat(beating, active_s_ago=0.0 if active else None)
            self.sweep()

    def sweep(self) -> None:
        self.db.do(self.sweeper.sweep())

    def run(self, run_id: RunId) -> Run:
        found = self.db.now_read(lambda tx: tx.runs.get(run_id))
        assert found is not None
        return found


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    made.db.end()


def running(fleet: Fleet) -> tuple[RunId, Grant]:
    """A run whose host has beaten once, watched for a whole lease."""
    run_id = fleet.submit()
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(8, beating=grant)
    return run_id, grant


def test_a_host_that_falls_silent_is_given_up_after_one_lease(fleet: Fleet) -> None:
    """FL-D41, FL-D42: with no set-up, and within a stated time."""
    run_id, grant = running(fleet)
    fleet.beat(grant)
    fleet.tick(5)
    assert fleet.run(run_id).state == "running"
    fleet.tick(1)
    assert (fleet.run(run_id).state, fleet.run(run_id).used_infrastructure) == ("queued", 1)


def test_a_host_that_beats_keeps_its_run_for_ever(fleet: Fleet) -> None:
    run_id, grant = running(fleet)
    fleet.tick(1000, beating=grant)
    assert (fleet.run(run_id).state, fleet.run(run_id).attempt) == ("running", 1)


def restarted(fleet: Fleet) -> None:
    fleet.clock.advance(3600)
    fleet.restart()


def database_away(fleet: Fleet) -> None:
    fleet.db.on_write = refuse
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            fleet.tick()
    fleet.db.on_write = None


def full_disk(fleet: Fleet) -> None:
    """Shorter than the gap that is noticed by itself: it counts because the tick was not committed."""
    fleet.db.on_write = refuse
    fleet.clock.advance(TICK_S)
    with pytest.raises(StoreUnavailable):
        fleet.sweep()
    fleet.db.on_write = None


def slept(fleet: Fleet) -> None:
    """The machine slept: its monotonic clock stood still."""
    fleet.clock.jump(8 * 3600)


def stopped_process(fleet: Fleet) -> None:
    fleet.clock.advance(600)


def jumped_forward(fleet: Fleet) -> None:
    fleet.clock.jump(3600)


def jumped_backward(fleet: Fleet) -> None:
    fleet.clock.jump(-3600)


BLIND = [restarted, database_away, full_disk, slept, stopped_process, jumped_forward, jumped_backward]


@pytest.mark.parametrize("blind", BLIND)
def test_whatever_blinds_the_server_starts_the_wait_anew(
    fleet: Fleet, blind: Callable[[Fleet], None]
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
    fleet: Fleet, blind: Callable[[Fleet], None]
) -> None:
    run_id, _ = running(fleet)
    blind(fleet)
    fleet.sweep()
    fleet.tick(7)
    assert fleet.run(run_id).state == "queued"


@pytest.mark.parametrize("blind", BLIND)
def test_being_blind_again_and_again_never_costs_a_run(fleet: Fleet, blind: Callable[[Fleet], None]) -> None:
    run_id, _ = running(fleet)
    for _ in range(6):
        blind(fleet)
        fleet.sweep()
        fleet.tick(4)
    assert (fleet.run(run_id).state, fleet.run(run_id).attempt) == ("running", 1)


def test_a_host_that_returns_with_the_newest_epoch_keeps_its_work_and_its_budget(fleet: Fleet) -> None:
    run_id, grant = running(fleet)
    fleet.tick(8)
    assert (fleet.run(run_id).state, fleet.run(run_id).used_infrastructure) == ("queued", 1)
    assert fleet.beat(grant).action == "continue"
    run = fleet.run(run_id)
    assert (run.state, run.used_infrastructure, run.attempt) == ("running", 0, 1)


def test_a_host_that_returns_after_another_claimed_has_lost_it(fleet: Fleet) -> None:
    """FL-D29."""
    run_id, old = running(fleet)
    fleet.tick(8)
    new = fleet.claim()
    assert new.lease.epoch > old.lease.epoch
    assert fleet.beat(old).action == "lost"
    assert fleet.beat(new).action == "continue"
    assert fleet.run(run_id).attempt == 2


def test_a_stalled_run_that_ran_out_unbeaten_gets_its_charge_back_when_it_returns(fleet: Fleet) -> None:
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


def test_a_tick_that_takes_long_to_commit_gives_nobody_up(fleet: Fleet) -> None:
    """The database hung during the tick itself: nobody could beat meanwhile."""
    run_id, grant = running(fleet)
    fleet.beat(grant)
    fleet.clock.advance(TICK_S)
    fleet.db.on_write = lambda: fleet.clock.advance(60)
    fleet.sweep()
    fleet.db.on_write = None
    assert fleet.run(run_id).state == "running"


def test_a_sleep_in_the_middle_of_a_sweep_gives_nobody_up(fleet: Fleet) -> None:
    run_id, grant = running(fleet)
    fleet.beat(grant)
    fleet.clock.advance(TICK_S)
    fleet.db.on_write = lambda: fleet.clock.jump(8 * 3600)
    fleet.sweep()
    fleet.db.on_write = None
    assert fleet.run(run_id).state == "running"


def test_a_run_that_uses_up_its_wall_limit_is_halted(fleet: Fleet) -> None:
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
    fleet: Fleet, blind: Callable[[Fleet], None]
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


@pytest.mark.xfail(strict=True, reason="core.fence.use_time counts the lease by the wall clock alone")
def test_a_clock_jump_does_not_turn_a_lost_host_into_a_used_up_wall_limit(fleet: Fleet) -> None:
    run_id = fleet.submit(wall_s=600)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(8, beating=grant)
    fleet.clock.jump(3600)
    fleet.sweep()
    fleet.tick(8)
    assert fleet.run(run_id).state == "queued"


def test_a_run_that_shows_no_life_is_tried_again_elsewhere(fleet: Fleet) -> None:
    run_id = fleet.submit(stall_s=60)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(11, beating=grant, active=False)
    assert fleet.run(run_id).state == "running"
    fleet.tick(2, beating=grant, active=False)
    assert (fleet.run(run_id).state, fleet.run(run_id).stop_reason) == ("yielding", "stalled")


def test_a_run_that_stalls_without_budget_is_halted(fleet: Fleet) -> None:
    run_id = fleet.submit(stall_s=60, lost=0)
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(13, beating=grant, active=False)
    assert (fleet.run(run_id).state, fleet.run(run_id).stop_reason) == ("halting", "stalled")


@pytest.mark.parametrize("blind", BLIND)
def test_a_run_that_is_alive_does_not_stall_because_the_server_was_blind(
    fleet: Fleet, blind: Callable[[Fleet], None]
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


def test_a_stall_that_was_seen_on_an_old_lease_does_not_stop_the_new_one(fleet: Fleet) -> None:
    """Between the sweeper's look and its act the run was lost and claimed again."""
    run_id = fleet.submit(stall_s=60)
    old = fleet.claim()
    fleet.tick(14)
    assert fleet.run(run_id).state == "queued"
    fleet.claim()
    fleet.db.now_write(lambda tx: stop_stalled(tx, old.lease.id, now=fleet.clock.now(), policy=POLICY))
    assert fleet.run(run_id).state == "running"


def test_a_lease_that_showed_life_since_the_sweepers_look_is_not_stopped(fleet: Fleet) -> None:
    run_id = fleet.submit(stall_s=60)
    grant = fleet.claim()
    fleet.clock.advance(61)
    fleet.beat(grant)
    fleet.db.now_write(lambda tx: stop_stalled(tx, grant.lease.id, now=fleet.clock.now(), policy=POLICY))
    assert fleet.run(run_id).state == "running"


@pytest.mark.parametrize("wall_s", [None, 60.0])
def test_a_run_that_was_claimed_anew_since_the_sweepers_look_is_not_halted(
    fleet: Fleet, wall_s: float | None
) -> None:
    run_id = fleet.submit(wall_s=wall_s)
    fleet.claim()
    fleet.db.now_write(lambda tx: halt_over_wall(tx, run_id, now=fleet.clock.now(), since=0.0, policy=POLICY))
    assert fleet.run(run_id).state == "running"


@pytest.mark.xfail(strict=True, reason="stop_deadline is a wall time that a new window does not move")
def test_a_clock_that_jumps_back_does_not_put_off_the_end_of_a_stop(fleet: Fleet) -> None:
    run_id, grant = running(fleet)
    fleet.db.now_write(
        lambda tx: cancel(tx, run_id, reason="", actor="user:ada", now=fleet.clock.now(), policy=POLICY)
    )
    fleet.clock.jump(-3600)
    fleet.tick(40, beating=grant)
    assert fleet.run(run_id).state == "cancelled"


@pytest.mark.xfail(strict=True, reason="not_before is a wall time that a new window does not move")
def test_a_clock_that_jumps_back_does_not_put_off_a_retry(fleet: Fleet) -> None:
    run_id, grant = running(fleet)
    report = Report("fail", Reason.CODE_ERROR, ran_s=1.0)
    fleet.db.now_write(
        lambda tx: Ender(POLICY, fleet.shares).end(
            tx, grant.lease.id, grant.lease.epoch, report, host_id=fleet.host.id, now=fleet.clock.now()
        )
    )
    assert fleet.run(run_id).state == "held"
    fleet.clock.jump(-3600)
    fleet.tick(40)
    assert fleet.run(run_id).state == "queued"
