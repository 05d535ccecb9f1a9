"""Making room for a run of higher priority, at the least cost, and never to the same harm twice
(FL-D05, FL-C14, FL-C15, FL-C17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.core.policy import ServerPolicy
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState


@pytest.fixture
def yard() -> Iterator[QueueOfHosts]:
    made = QueueOfHosts()
    yield made
    made.db.end()


def wait(yard: QueueOfHosts) -> None:
    yard.clock.advance(yard.policy.preempt_after_s)


def test_a_preemptible_run_yields_to_one_of_higher_priority_and_goes_on_later_free_of_charge(
    yard: QueueOfHosts,
) -> None:
    """FL-C14, FL-C15, FL-C17, FL-D05."""
    yard.host("box", slots=1)
    low = yard.submit(preemptible=True, lost=0)
    (victim,) = yard.claim("box")
    high = yard.submit(priority=5)
    assert yard.preempt() == []
    wait(yard)
    (plan,) = yard.preempt()
    assert (plan.run_id, plan.victims) == (high, (low,))
    assert yard.beat(victim) == "stop"
    told = yard.run(low)
    assert (told.state, told.stop_reason) == (RunState.YIELDING, Reason.YIELDED)
    yard.end(victim, "stopped", Reason.RELEASED)

    yielded = yard.run(low)
    assert (yielded.state, yielded.used.infrastructure, yielded.reason) == (
        RunState.QUEUED,
        0,
        Reason.YIELDED,
    )
    (winner,) = yard.claim("box")
    assert winner.run.id == high
    yard.end(winner)
    assert yard.claimed("box") == [low]
    assert [event.type for event in yard.events(low)] == ["submit", "claim", "preempt", "stopped", "claim"]


def test_a_run_that_does_not_allow_it_is_never_touched(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    yard.submit()
    yard.claim("box")
    yard.submit(priority=1000)
    wait(yard)
    assert yard.preempt() == []


def test_equal_or_lower_priority_preempts_nothing(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    yard.submit(preemptible=True, priority=3)
    yard.claim("box")
    yard.submit(priority=3)
    yard.submit(priority=2)
    wait(yard)
    assert yard.preempt() == []


def test_nobody_yields_while_another_host_has_room(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    yard.submit(preemptible=True)
    yard.claim("box")
    yard.host("idle", slots=1)
    yard.submit(priority=5)
    wait(yard)
    assert yard.preempt() == []


def test_the_fewest_then_the_lowest_then_the_youngest_yield(yard: QueueOfHosts) -> None:
    """FL-C17."""
    yard.host("box", gpus=4, slots=4)
    for priority, gpus in ((1, 1), (0, 1), (0, 1), (2, 1)):
        yard.submit(preemptible=True, priority=priority, gpus=gpus)
    ids = {}
    for _ in range(4):
        (grant,) = yard.claim("box")
        ids[grant.run.id] = grant.run.priority
        yard.clock.advance(10)
    zero = [run for run, priority in ids.items() if priority == 0]
    yard.submit(priority=9, gpus=1)
    wait(yard)
    (plan,) = yard.preempt()
    assert plan.victims == (zero[-1],)


def test_one_large_victim_is_asked_before_two_small_ones(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=4, slots=8)
    yard.submit(preemptible=True, gpus=1)
    yard.submit(preemptible=True, gpus=1)
    large = yard.submit(preemptible=True, gpus=2, priority=1)
    yard.claim("box", max_leases=3)
    yard.submit(priority=9, gpus=2)
    wait(yard)
    (plan,) = yard.preempt()
    assert plan.victims == (large,)


def test_the_host_where_the_least_is_lost_is_chosen(yard: QueueOfHosts) -> None:
    for name in ("one", "two"):
        yard.host(name, gpus=2, slots=2)
    yard.submit(preemptible=True, gpus=1)
    yard.submit(preemptible=True, gpus=1)
    yard.claim("one", max_leases=2)
    single = yard.submit(preemptible=True, gpus=2)
    yard.claim("two")
    yard.submit(priority=9, gpus=2)
    wait(yard)
    (plan,) = yard.preempt()
    assert (plan.host_id, plan.victims) == (yard.hosts["two"].id, (single,))


def test_what_the_first_victim_frees_does_not_go_to_another_meanwhile(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=2, slots=4)
    low = [yard.submit(preemptible=True, gpus=1) for _ in range(2)]
    grants = yard.claim("box", max_leases=2)
    high = yard.submit(priority=5, gpus=2)
    wait(yard)
    (plan,) = yard.preempt()
    assert set(plan.victims) == set(low)
    yard.end(grants[0], "stopped", Reason.RELEASED)
    assert yard.claimed("box") == []
    yard.end(grants[1], "stopped", Reason.RELEASED)
    assert yard.claimed("box") == [high]


def test_a_run_is_asked_for_once_while_its_victims_stop(yard: QueueOfHosts) -> None:
    yard.host("box", slots=2)
    for _ in range(2):
        yard.submit(preemptible=True)
    yard.claim("box", max_leases=2)
    yard.submit(priority=5)
    wait(yard)
    assert len(yard.preempt()) == 1
    wait(yard)
    assert yard.preempt() == []


def test_one_that_yielded_is_left_alone_for_a_while_after_it_started_again(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    low = yard.submit(preemptible=True)
    (victim,) = yard.claim("box")
    first = yard.submit(priority=5)
    wait(yard)
    yard.preempt()
    yard.end(victim, "stopped", Reason.RELEASED)
    (winner,) = yard.claim("box")
    assert winner.run.id == first
    yard.end(winner)
    assert yard.claimed("box") == [low]
    yard.submit(priority=5)
    wait(yard)
    assert yard.preempt() == []
    yard.clock.advance(yard.policy.preempt_guard_s)
    yard.claim("box", max_leases=0)
    assert len(yard.preempt()) == 1


def test_a_run_that_its_quota_holds_back_preempts_nobody(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    yard.submit(preemptible=True)
    yard.claim("box")
    yard.quota("urgent", max_running=0)
    yard.submit(project="urgent", priority=5)
    wait(yard)
    assert yard.preempt() == []


def test_preemption_can_be_turned_off() -> None:
    yard = QueueOfHosts(ServerPolicy(preemption=False))
    yard.host("box", slots=1)
    yard.submit(preemptible=True)
    yard.claim("box")
    yard.submit(priority=5)
    wait(yard)
    assert yard.preempt() == []
    yard.db.end()


def test_a_run_that_finishes_although_it_was_asked_to_yield_has_succeeded(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    low = yard.submit(preemptible=True)
    (victim,) = yard.claim("box")
    high = yard.submit(priority=5)
    wait(yard)
    yard.preempt()
    yard.end(victim)
    assert yard.run(low).state is RunState.SUCCEEDED
    assert yard.claimed("box") == [high]
