"""Retry counts and wall limits under a simulated clock (FL-D08), and a place in line that no retry costs
(FL-D03)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState


@pytest.fixture
def yard() -> Iterator[QueueOfHosts]:
    made = QueueOfHosts()
    yield made
    made.db.end()


def test_a_run_that_was_lost_again_and_again_is_still_before_all_that_came_later(yard: QueueOfHosts) -> None:
    """FL-D03: whatever its history, the oldest of equals starts first; each change is an event."""
    yard.host("box", slots=1)
    old = yard.submit(lost=5)
    for _ in range(20):
        yard.submit()
    for attempt in range(1, 6):
        (grant,) = yard.claim("box")
        assert (grant.run.id, grant.run.attempt) == (old, attempt)
        yard.clock.advance(60)
        yard.end(grant, "fail", Reason.HOST_LOST)
        yard.submit()
    assert yard.claimed("box") == [old]
    kinds = [event.type for event in yard.events(old)]
    assert kinds == ["submit"] + ["claim", "requeue"] * 5 + ["claim"]
    numbers = [event.n for event in yard.events(old)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_run_that_failed_by_itself_waits_its_backoff_and_then_has_its_old_place(yard: QueueOfHosts) -> None:
    yard.host("box", slots=1)
    old = yard.submit(code=2)
    (grant,) = yard.claim("box")
    assert grant.run.id == old
    young = yard.submit()
    yard.end(grant, "fail", Reason.CODE_ERROR)
    assert yard.run(old).state is RunState.HELD
    yard.sweep(8)
    assert yard.claimed("box") == [old]
    assert yard.run(young).attempt == 0


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_run_is_tried_again_as_often_as_it_may_be_and_no_more(yard: QueueOfHosts, budget: int) -> None:
    """FL-D08."""
    yard.host("box", slots=1)
    run = yard.submit(lost=budget)
    for _ in range(budget):
        (grant,) = yard.claim("box")
        assert yard.end(grant, "fail", Reason.HOST_LOST).run_state == "queued"
    (grant,) = yard.claim("box")
    assert yard.end(grant, "fail", Reason.HOST_LOST).run_state == "failed"
    assert yard.run(run).used.infrastructure == budget
    assert yard.claimed("box") == []


def test_the_wall_limit_counts_all_attempts_together(yard: QueueOfHosts) -> None:
    """FL-D08: a worker that does not keep it is told by the server at the time that the limit names."""
    yard.host("box", slots=1)
    run = yard.submit(wall_s=600.0)
    (grant,) = yard.claim("box")
    yard.clock.advance(400)
    yard.end(grant, "fail", Reason.HOST_LOST)
    (grant,) = yard.claim("box")
    begun = yard.clock.now()
    while yard.run(run).state is RunState.RUNNING:
        yard.sweep(beating=[grant])
        assert yard.clock.now() - begun < 300
    assert yard.clock.now() - begun >= 200
    assert yard.run(run).stop_reason is Reason.WALL_LIMIT
    yard.end(grant, "stopped", Reason.WALL_LIMIT)
    ended = yard.run(run)
    assert (ended.state, ended.reason) == (RunState.FAILED, Reason.WALL_LIMIT)


def test_a_run_may_take_days_and_its_limit_is_the_users(yard: QueueOfHosts) -> None:
    """MT-D47."""
    day = 86_400.0
    yard.host("box", slots=2)
    free, bounded = yard.submit(), yard.submit(wall_s=3 * day)
    grants = yard.claim("box", max_leases=2)
    for _ in range(2):
        yard.clock.advance(day)
        yard.sweep(beating=grants)

    assert {yard.run(run).state for run in (free, bounded)} == {RunState.RUNNING}
