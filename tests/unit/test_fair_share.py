"""Who comes next: by priority, then fair share between projects, then age (promise 5; FL-D03)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.memory_database import MemoryDatabase
from support.queue_of_hosts import QueueOfHosts
from support.queued_runs import QueuedRuns

from corral.core.queue.fair_share import HALF_LIFE_S, RUNNING_WEIGHT_S, Shares, add_usage, decayed


@pytest.fixture
def queue() -> Iterator[QueuedRuns]:
    database = MemoryDatabase()
    yield QueuedRuns(database)
    database.end()


def test_the_higher_priority_goes_first_however_young(queue: QueuedRuns) -> None:
    """FL-C17, FL-D03."""
    old = queue.add(priority=0, ready_at=1.0)
    young = queue.add(priority=5, ready_at=99.0)
    assert queue.take_all() == [young, old]


def test_among_equals_of_one_project_the_oldest_goes_first_whatever_its_history(queue: QueuedRuns) -> None:
    """FL-D03."""
    second = queue.add(ready_at=2.0)
    first = queue.add(ready_at=1.0, used_infrastructure=3)
    third = queue.add(ready_at=3.0)
    assert queue.take_all() == [first, second, third]


def test_age_counts_across_shapes(queue: QueuedRuns) -> None:
    second = queue.add(shape="b", ready_at=2.0)
    first = queue.add(shape="a", ready_at=1.0)
    third = queue.add(shape="a", ready_at=3.0)
    assert queue.take_all() == [first, second, third]


def test_the_project_that_used_less_goes_first_within_a_priority(queue: QueuedRuns) -> None:
    greedy = queue.add(project="greedy", ready_at=1.0)
    modest = queue.add(project="modest", ready_at=2.0)
    queue.shares.closed("greedy", 1000.0)
    assert queue.take_all() == [modest, greedy]


def test_priority_goes_before_fair_share(queue: QueuedRuns) -> None:
    queue.shares.closed("greedy", 1000.0)
    modest = queue.add(project="modest")
    greedy = queue.add(project="greedy", priority=1)
    assert queue.take_all() == [greedy, modest]


def test_a_burst_of_claims_is_shared_out(queue: QueuedRuns) -> None:
    """A running lease weighs at once, so the older queue of one project does not take every slot."""
    for n in range(4):
        queue.add(project="alpha", ready_at=float(n))
        queue.add(project="beta", ready_at=100.0 + n)
    order = []
    for _ in range(8):
        project = queue.take().lane.project
        queue.shares.claimed(project)
        order.append(project)
    assert order == ["alpha", "beta"] * 4


def test_within_a_priority_no_project_starves(queue: QueuedRuns) -> None:
    """One project submits without end; the other's run is taken as soon as it has used less."""
    for n in range(50):
        queue.add(project="flood", ready_at=float(n))
    waiting = queue.add(project="quiet", ready_at=1000.0)
    taken = []
    for _ in range(3):
        found = queue.take()
        queue.shares.claimed(found.lane.project)
        taken.append(found.ready.id)
    assert waiting in taken


def test_what_was_used_is_halved_every_day() -> None:
    assert decayed(80.0, 0.0, HALF_LIFE_S) == 40.0
    assert decayed(80.0, 0.0, 3 * HALF_LIFE_S) == 10.0


def test_a_clock_that_jumps_back_does_not_make_usage_grow() -> None:
    assert decayed(80.0, 1000.0, 0.0) == 80.0


def test_a_lease_that_ends_weighs_by_its_time_and_no_longer_by_running() -> None:
    shares = Shares()
    shares.claimed("alpha")
    assert shares.weight("alpha", 0.0) == RUNNING_WEIGHT_S
    shares.closed("alpha", 10.0)
    assert shares.weight("alpha", 5.0) == 10.0


def test_what_was_used_is_added_to_what_the_database_has_and_weighs_the_same(queue: QueuedRuns) -> None:
    """Other servers add theirs to the same row."""
    for server in (Shares(), Shares()):
        server.closed("alpha", 10.0)
        used = server.unsaved()
        queue.db.now_write(lambda tx, used=used: add_usage(tx, used, 5.0))  # type: ignore[misc]
        server.saved(used)
        assert server.unsaved() == {}
    after = Shares()
    queue.db.now_read(lambda tx: after.load(tx, 5.0))
    assert after.weight("alpha", 5.0) == 20.0


def test_more_ends_than_claims_do_not_make_a_project_weigh_less_than_nothing() -> None:
    """After a restart the counts are not there yet when the first lease ends."""
    shares = Shares()
    shares.closed("alpha", 0.0)
    shares.closed("alpha", 0.0)
    assert shares.weight("alpha", 0.0) == 0.0


def test_an_instance_that_callers_wait_for_goes_first_within_the_share_of_its_project() -> None:
    """STO-13: instances queued behind a hundred runs after a storm. Another project's share stays its own."""
    yard = QueueOfHosts()
    host = yard.host("one", slots=10)
    runs = [yard.submit(project="alpha") for _ in range(3)]
    others = [yard.submit(project="beta") for _ in range(2)]
    urgent = yard.submit(project="alpha", priority=1)
    instance = yard.submit(project="alpha", kind="service")

    assert yard.claimed(host) == [urgent]
    # By now alpha has one run running, and then beta has as well.
    assert yard.claimed(host) == [others[0]]
    assert yard.claimed(host) == [instance]
    assert yard.claimed(host, max_leases=4) == [others[1], *runs]
    yard.db.end()
