"""A large run is not starved by small ones: a host is kept for it, and filled meanwhile with what ends in
time (FL-D05, FL-C14)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.core.policy import ServerPolicy
from corral.core.queue.grants import Grant
from corral.domain.runs.reasons import Reason


@pytest.fixture
def yard() -> Iterator[QueueOfHosts]:
    made = QueueOfHosts()
    yield made
    made.db.end()


def small_ones(yard: QueueOfHosts, count: int, *, wall_s: float | None = None) -> list[Grant]:
    """A host of four GPUs, all of them taken."""
    yard.host("box", gpus=4, slots=8)
    for _ in range(count):
        yard.submit(gpus=1, wall_s=wall_s)
    return yard.claim("box", max_leases=count)


def test_small_runs_go_first_only_until_the_large_one_has_waited_its_time(yard: QueueOfHosts) -> None:
    running = small_ones(yard, 4)
    large = yard.submit(gpus=4)
    later = [yard.submit(gpus=1) for _ in range(8)]
    yard.end(running[0])
    assert yard.claimed("box") == [later[0]]

    yard.clock.advance(yard.policy.reserve_after_s)
    yard.end(running[1])
    assert yard.claimed("box") == []
    for grant in running[2:]:
        yard.end(grant)
        assert yard.claimed("box") == []
    last = yard.db.now_read(lambda tx: tx.leases.live_of_host(yard.hosts["box"].id))
    assert len(last) == 1
    reserved = yard.board.reservations.of_run(large, yard.clock.now(), 90.0)
    assert reserved is not None
    assert reserved.host_id == yard.hosts["box"].id


def test_the_large_run_starts_as_soon_as_it_fits_and_the_host_is_free_again(yard: QueueOfHosts) -> None:
    running = small_ones(yard, 4)
    large = yard.submit(gpus=4)
    small = yard.submit(gpus=0)
    assert yard.claimed("box") == [small]
    small = yard.submit(gpus=0)
    yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box") == []
    for grant in running:
        yard.end(grant)
    assert yard.claimed("box", max_leases=8) == [large, small]
    assert yard.board.reservations.of_run(large, yard.clock.now(), 90.0) is None


def test_a_run_of_higher_rank_still_goes_first_on_a_kept_host(yard: QueueOfHosts) -> None:
    small_ones(yard, 4)
    yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box") == []
    urgent = yard.submit(gpus=0, priority=1)
    assert yard.claimed("box") == [urgent]


def test_a_project_that_had_less_does_not_take_a_kept_host_either(yard: QueueOfHosts) -> None:
    """Its share lets it go first anywhere else; here the large run would wait for ever."""
    running = small_ones(yard, 4)
    large = yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box") == []
    lighter = [yard.submit(gpus=1, project="lighter") for _ in range(4)]
    for grant in running[:3]:
        yard.end(grant)
        assert yard.claimed("box") == []
    yard.end(running[3])
    assert yard.claimed("box") == [large]
    assert yard.claimed("box") == []
    assert all(yard.run(one).state == "queued" for one in lighter)


def test_a_host_is_not_kept_for_a_run_that_was_cancelled(yard: QueueOfHosts) -> None:
    running = small_ones(yard, 4)
    large = yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    later = yard.submit(gpus=1)
    yard.end(running[0])
    assert yard.claimed("box") == []
    yard.cancel(large)
    assert yard.claimed("box") == [later]


def test_at_most_one_host_is_kept_for_a_run_and_others_go_on(yard: QueueOfHosts) -> None:
    small_ones(yard, 4)
    yard.host("other", gpus=4, slots=8)
    blocker = yard.submit(gpus=1)
    assert yard.claimed("other") == [blocker]
    yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box") == []
    small = yard.submit(gpus=1)
    assert yard.claimed("box") == []
    assert yard.claimed("other") == [small]


def test_backfill_takes_what_ends_by_its_wall_limit_before_the_large_run_can_begin(
    yard: QueueOfHosts,
) -> None:
    """FL-C14, FL-D05."""
    small_ones(yard, 4, wall_s=1000.0)
    yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box") == []
    too_long = yard.submit(gpus=0, wall_s=2000.0)
    endless = yard.submit(gpus=0)
    short = yard.submit(gpus=0, wall_s=500.0)

    assert yard.claimed("box", max_leases=4) == [short]
    assert {yard.run(run).attempt for run in (too_long, endless)} == {0}


def test_without_wall_limits_nothing_is_backfilled(yard: QueueOfHosts) -> None:
    small_ones(yard, 4)
    yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    yard.submit(gpus=0, wall_s=1.0)
    assert yard.claimed("box") == []


def test_a_host_that_goes_away_is_not_kept_and_the_run_gets_another(yard: QueueOfHosts) -> None:
    small_ones(yard, 4)
    large = yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    yard.claim("box")
    yard.clock.advance(yard.policy.away_s + 1)
    yard.host("other", gpus=4, slots=8)
    blocker = yard.submit(gpus=1, priority=1)
    assert yard.claimed("other") == [blocker]
    yard.claim("other")
    yard.clock.advance(yard.policy.reserve_after_s)
    yard.claim("other")
    reserved = yard.board.reservations.of_run(large, yard.clock.now(), yard.policy.away_s)
    assert reserved is not None
    assert reserved.host_id == yard.hosts["other"].id


def test_after_a_restart_the_wait_begins_anew_and_ends_the_same(yard: QueueOfHosts) -> None:
    small_ones(yard, 4)
    yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box") == []
    yard.restart()
    first, second = yard.submit(gpus=0), yard.submit(gpus=0)
    assert yard.claimed("box") == [first]
    yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box") == []
    assert yard.run(second).attempt == 0


def test_a_cancelled_run_keeps_no_host(yard: QueueOfHosts) -> None:
    running = small_ones(yard, 4)
    yard.submit(gpus=4)
    yard.claim("box")
    yard.clock.advance(yard.policy.reserve_after_s)
    yard.claim("box")
    large = yard.board.reservations.of_host(yard.hosts["box"].id, yard.clock.now(), 90.0)
    assert large is not None
    yard.cancel(large.run_id)
    yard.end(running[0], "fail", Reason.CODE_ERROR)
    yard.reconcile()
    small = yard.submit(gpus=1)
    assert yard.claimed("box") == [small]


def test_ageing_lets_an_old_run_pass_a_younger_one_of_higher_priority() -> None:
    """Across priorities nothing starves while ageing is on; the setting is seconds for one point."""
    yard = QueueOfHosts(ServerPolicy(ageing_s=100.0))
    yard.host("box", slots=1)
    old = yard.submit(priority=0)
    yard.clock.advance(250)
    young = yard.submit(priority=2)
    (grant,) = yard.claim("box")
    assert grant.run.id == old
    yard.end(grant)
    assert yard.claimed("box") == [young]
    yard.db.end()


def test_without_ageing_priority_is_all(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    yard.submit(priority=0)
    yard.clock.advance(1e6)
    young = yard.submit(priority=1)
    assert yard.claimed("box") == [young]
