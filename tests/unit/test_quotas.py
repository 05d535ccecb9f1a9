"""What a project may use: at once, waiting, and in a month (FL-D04, FL-C15)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.core.quotas import used_in
from corral.domain.errors import QuotaExceeded
from corral.domain.quotas import by_month, month_of
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState


@pytest.fixture
def yard() -> Iterator[QueueOfHosts]:
    made = QueueOfHosts()
    yield made
    made.db.end()


def gpu_hours(yard: QueueOfHosts, project: str = "alpha") -> float:
    now = yard.clock.now()
    used = yard.db.now_read(lambda tx: used_in(tx, month_of(now), now))
    return sum(item.gpu_s for item in used if item.project == project) / 3600


def test_a_project_at_its_number_of_runs_is_passed_over_and_the_next_one_goes(yard: QueueOfHosts) -> None:
    """FL-C14, FL-C15."""
    yard.host("box", slots=4)
    yard.quota("alpha", max_running=1)
    first = yard.submit(project="alpha", priority=9)
    yard.submit(project="alpha", priority=9)
    other = yard.submit(project="beta")

    assert yard.claimed("box", max_leases=4) == [first, other]


def test_a_quota_is_never_exceeded_though_the_hints_know_nothing_of_it(yard: QueueOfHosts) -> None:
    """The counts in memory may be wrong; the claim counts the leases themselves."""
    yard.host("box", slots=4)
    yard.quota("alpha", max_running=2)
    for _ in range(4):
        yard.submit(project="alpha")
    (first,) = yard.claim("box")
    yard.claim("box")
    yard.board.shares.closed("alpha", 0.0)
    yard.board.shares.closed("alpha", 0.0)
    assert yard.board.shares.held_back("alpha", 0) is None

    assert yard.claimed("box", max_leases=4) == []
    yard.end(first)
    assert len(yard.claimed("box", max_leases=4)) == 1


def test_gpus_at_once_are_counted_and_a_smaller_run_of_the_project_may_still_go(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=8, slots=8)
    yard.quota("alpha", max_gpus=3)
    two = yard.submit(gpus=2)
    yard.submit(gpus=2)
    one = yard.submit(gpus=1)
    none = yard.submit(gpus=0)

    assert set(yard.claimed("box", max_leases=8)) == {two, one, none}


def test_a_limit_that_is_taken_away_holds_nothing_back(yard: QueueOfHosts) -> None:
    yard.host("box")
    yard.quota("alpha", max_running=0)
    run = yard.submit()
    assert yard.claimed("box") == []
    yard.db.now_write(lambda tx: tx.quotas.delete("alpha"))
    yard.reconcile()
    assert yard.claimed("box") == [run]


def test_more_runs_than_may_wait_are_refused_with_the_numbers(yard: QueueOfHosts) -> None:
    yard.quota("alpha", max_queued=2)
    yard.submit()
    yard.submit()
    with pytest.raises(
        QuotaExceeded, match=r"may have 2 runs waiting .*: 2 wait already, and this would add 1"
    ):
        yard.submit()
    yard.submit(project="beta")


def test_what_runs_does_not_count_as_waiting(yard: QueueOfHosts) -> None:
    yard.host("box")
    yard.quota("alpha", max_queued=1)
    yard.submit()
    assert len(yard.claim("box")) == 1
    yard.submit()


def test_gpu_hours_are_counted_as_leases_close_and_while_they_run(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=4)
    yard.submit(gpus=2)
    (grant,) = yard.claim("box")
    yard.clock.advance(1800)
    assert gpu_hours(yard) == pytest.approx(1.0)
    yard.end(grant)
    assert gpu_hours(yard) == pytest.approx(1.0)
    yard.clock.advance(1800)
    assert gpu_hours(yard) == pytest.approx(1.0)


def test_the_hours_of_a_lease_that_ran_out_and_came_back_are_counted_once(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=1)
    run = yard.submit(gpus=1)
    (grant,) = yard.claim("box")
    yard.beat(grant)
    yard.sweep(7, beating=[grant])
    yard.sweep(10)
    assert yard.run(run).state is RunState.QUEUED
    lost = gpu_hours(yard)
    assert lost > 0
    assert yard.beat(grant) == "continue"
    yard.end(grant, ran_s=3600.0)

    assert gpu_hours(yard) == pytest.approx(1.0)


def test_a_project_that_used_its_gpu_hours_gets_no_more_of_them_until_the_next_month(
    yard: QueueOfHosts,
) -> None:
    yard.host("box", gpus=4)
    yard.quota("alpha", gpu_hours=1)
    yard.submit(gpus=1)
    (grant,) = yard.claim("box")
    yard.end(grant, ran_s=3600.0)
    on_gpu = yard.submit(gpus=1)
    on_cpu = yard.submit(gpus=0)
    yard.reconcile()

    assert yard.claimed("box", max_leases=4) == [on_cpu]
    yard.clock.advance(31 * 86400)
    yard.reconcile()
    assert yard.claimed("box", max_leases=4) == [on_gpu]


def test_a_run_that_would_pass_the_gpu_hours_is_halted_before_it_passes_them(yard: QueueOfHosts) -> None:
    """FL-D04: with time for its checkpoint, and the worst case of its stop still within the limit."""
    yard.host("box", gpus=4)
    yard.quota("alpha", gpu_hours=1)
    run = yard.submit(gpus=2)
    (grant,) = yard.claim("box")
    told = "continue"
    for _ in range(1000):
        yard.sweep()
        told = yard.beat(grant)
        if told != "continue":
            break
    assert told == "stop"
    halted = yard.run(run)
    assert (halted.state, halted.stop_reason) == (RunState.HALTING, Reason.MONEY_LIMIT)
    assert halted.stop_deadline is not None
    # Even if the worker never answers, its lease is taken away before the hour is over.
    assert 2 * (halted.stop_deadline + yard.policy.lease_s / 2 - grant.lease.granted_at) <= 3600
    yard.end(grant, "stopped", Reason.MONEY_LIMIT)
    assert yard.run(run).state is RunState.FAILED
    assert gpu_hours(yard) <= 1.0


def test_a_clock_that_jumps_ahead_halts_nothing_for_its_gpu_hours(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=1)
    yard.quota("alpha", gpu_hours=2)
    run = yard.submit(gpus=1)
    (grant,) = yard.claim("box")
    yard.sweep(20, beating=[grant])
    yard.clock.jump(6 * 3600)
    yard.sweep(3)
    assert yard.run(run).state is RunState.RUNNING


def test_seconds_over_the_end_of_a_month_are_counted_in_both() -> None:
    first = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
    assert list(by_month(first + 100, 150.0)) == [("2026-11", 100.0), ("2026-10", 50.0)]
    assert list(by_month(first, 60.0)) == [("2026-10", 60.0)]
    assert sum(part for _, part in by_month(first + 5, 90 * 86400.0)) == pytest.approx(90 * 86400)


def test_the_project_with_the_greater_weight_gets_the_greater_share(yard: QueueOfHosts) -> None:
    """FL-C15, FL-D05."""
    yard.host("box", slots=40)
    yard.quota("heavy", weight=3.0)
    for _ in range(40):
        yard.submit(project="heavy")
        yard.submit(project="light")
    taken = [grant.run.project for grant in yard.claim("box", max_leases=40)]

    assert taken.count("heavy") == 30
