"""Hints of what is queued: cheap, and harmless where they are wrong (DESIGN.md section 6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.memory_database import CountingTx, MemoryDatabase
from support.queued_runs import QueuedRuns, a_queued_run

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimResult, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.lanes import KEEP, REFILL, Lanes
from corral.core.runs.shapes import put_shape
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import new_host_id
from corral.store.transaction import Tx


@pytest.fixture
def queue() -> Iterator[QueuedRuns]:
    database = MemoryDatabase()
    yield QueuedRuns(database)
    database.end()


def test_a_hint_that_is_missing_is_found_by_reconciling(queue: QueuedRuns) -> None:
    run_id = queue.add()
    queue.lanes = Lanes()
    assert queue.look()[0] is None
    queue.lanes.reconcile(queue.db.now_read(lambda tx: tx.runs.lanes()))
    assert queue.take().ready.id == run_id


def test_reconciling_forgets_what_is_no_longer_queued(queue: QueuedRuns) -> None:
    run_id = queue.add()
    queue.leave(run_id)
    queue.lanes.reconcile(queue.db.now_read(lambda tx: tx.runs.lanes()))
    assert queue.look()[0] is None


def test_what_a_unit_took_without_committing_is_offered_again_in_its_place(queue: QueuedRuns) -> None:
    ids = [queue.add(ready_at=float(n)) for n in range(3)]
    first, second = queue.take(), queue.take()
    queue.lanes.put_back([second, first])
    assert queue.take_all() == ids


def test_what_was_put_back_into_an_empty_lane_is_found(queue: QueuedRuns) -> None:
    run_id = queue.add()
    taken = queue.take()
    queue.leave(run_id)
    assert queue.look()[0] is None
    other = queue.add(ready_at=5.0)
    queue.lanes.put_back([taken])
    assert other in queue.take_all()


def test_hearing_of_a_run_twice_offers_it_once(queue: QueuedRuns) -> None:
    run_id = queue.add()
    taken = queue.take()
    queue.lanes.put_back([taken, taken])
    queue.lanes.put_back([taken])
    assert queue.take_all() == [run_id]


def test_order_is_kept_when_a_lane_is_longer_than_what_is_remembered_of_it(queue: QueuedRuns) -> None:
    ids = fill(queue, REFILL * 2 + 10)
    assert queue.take_all() == ids


def test_a_lane_that_grows_past_what_is_kept_loses_no_run(queue: QueuedRuns) -> None:
    first = queue.add(ready_at=0.0)
    assert queue.take().ready.id == first
    queue.leave(first)
    assert queue.look()[0] is None
    ids = [queue.add(ready_at=float(n)) for n in range(1, KEEP + 100)]
    assert queue.take_all() == ids


def test_an_older_run_that_is_queued_again_goes_before_what_is_remembered(queue: QueuedRuns) -> None:
    fill(queue, 3, first=10.0)
    queue.lanes.put_back([queue.take()])
    old = queue.add(ready_at=1.0)
    assert queue.take().ready.id == old


def test_a_host_that_fits_nothing_costs_no_sql(queue: QueuedRuns) -> None:
    fill(queue, 500)
    found, calls = queue.look(lambda shape: False)
    assert (found, calls) == (None, {})


def test_taking_costs_the_same_from_ten_as_from_thousands(queue: QueuedRuns) -> None:
    def costs() -> list[dict[str, int]]:
        queue.lanes = Lanes()
        queue.lanes.reconcile(queue.db.now_read(lambda tx: tx.runs.lanes()))
        return [queue.look()[1] for _ in range(10)]

    fill(queue, 12)
    few = costs()
    fill(queue, 5_000, first=100.0)
    assert costs() == few
    assert few == [{"runs.ready": 1}] + [{}] * 9


def fill(queue: QueuedRuns, count: int, *, first: float = 0.0) -> list[str]:
    """Many queued runs at once, which the lanes have yet to hear of."""
    runs = [a_queued_run(ready_at=first + n) for n in range(count)]

    def insert(tx: Tx) -> None:
        for run in runs:
            tx.runs.insert(run, "{}")

    queue.db.now_write(insert)
    queue.lanes.reconcile(queue.db.now_read(lambda tx: tx.runs.lanes()))
    return [run.id for run in runs]


class Claimer:
    """A host with one slot that claims from the queue's lanes."""

    def __init__(self, queue: QueuedRuns) -> None:
        self.queue = queue
        self.host = Host(new_host_id(), "box", None, None, 4, None, False, None, 0.0)
        self.shapes = Shapes()
        queue.db.now_write(lambda tx: tx.hosts.insert(self.host))
        self.shape = queue.db.now_write(lambda tx: put_shape(tx, Requirements()))
        self._requests = 0

    def queue_run(self, **fields: float) -> str:
        run = a_queued_run(**fields)._replace(shape=self.shape)  # type: ignore[arg-type]
        self.queue.db.now_write(lambda tx: tx.runs.insert(run, "{}"))
        self.queue.lanes.reconcile(self.queue.db.now_read(lambda tx: tx.runs.lanes()))
        return run.id

    def unit(self) -> Claim:
        self._requests += 1
        ask = ClaimTerms(
            host_id=self.host.id,
            boot_id="boot-one",
            request_id=f"claim-{self._requests}",
            slots=4,
            max_leases=1,
            draining=False,
            capability=canonical({"hostname": "box", "os": "linux", "arch": "x86_64"}),
            holding=None,
        )
        return Claim(
            Board(self.queue.lanes, self.shapes, self.queue.shares), ServerPolicy(), ask, lambda: 10.0
        )

    def claim(self) -> tuple[list[str], dict[str, int]]:
        claim = self.unit()

        def counted(tx: Tx) -> tuple[ClaimResult, dict[str, int]]:
            counting = CountingTx(tx)
            return claim(counting), dict(counting.counted)

        done, calls = self.queue.db.now_write(counted)
        return [grant.run.id for grant in done.grants], calls


def test_a_hint_that_is_stale_is_harmless(queue: QueuedRuns) -> None:
    """The claim checks the run; one that was cancelled is passed over for the next."""
    claimer = Claimer(queue)
    gone = claimer.queue_run(ready_at=1.0)
    good = claimer.queue_run(ready_at=2.0)
    stale = queue.take()
    assert stale.ready.id == gone
    queue.lanes.put_back([stale])
    queue.leave(stale.ready.id)
    assert claimer.claim()[0] == [good]
    assert claimer.claim()[0] == []


def test_a_claim_that_was_rolled_back_gives_its_run_to_the_next(queue: QueuedRuns) -> None:
    claimer = Claimer(queue)
    run_id = claimer.queue_run()
    lost = claimer.unit()

    def cut(tx: Tx) -> None:
        assert lost(tx).grants
        raise RuntimeError("the commit failed")

    with pytest.raises(RuntimeError):
        queue.db.now_write(cut)
    assert claimer.claim()[0] == []
    lost.undo()
    assert claimer.claim()[0] == [run_id]


def test_a_unit_that_runs_again_after_a_lost_race_takes_the_same_run(queue: QueuedRuns) -> None:
    claimer = Claimer(queue)
    run_id = claimer.queue_run()
    unit = claimer.unit()

    def cut(tx: Tx) -> None:
        unit(tx)
        raise RuntimeError("lost the race")

    with pytest.raises(RuntimeError):
        queue.db.now_write(cut)
    assert [grant.run.id for grant in queue.db.now_write(unit).grants] == [run_id]


def test_a_claim_costs_the_same_number_of_statements_however_long_the_queue(queue: QueuedRuns) -> None:
    claimer = Claimer(queue)
    for n in range(10):
        claimer.queue_run(ready_at=float(n))
    claimer.claim()
    _, few = claimer.claim()
    fill_shape(claimer, 100_000)
    queue.lanes.reconcile(queue.db.now_read(lambda tx: tx.runs.lanes()))
    claimer.claim()
    _, many = claimer.claim()
    assert many == few


def fill_shape(claimer: Claimer, count: int) -> None:
    runs = [a_queued_run(ready_at=100.0 + n)._replace(shape=claimer.shape) for n in range(count)]

    def insert(tx: Tx) -> None:
        for run in runs:
            tx.runs.insert(run, "{}")

    claimer.queue.db.now_write(insert)


def test_a_poll_that_finds_nothing_fitting_touches_only_the_host_and_its_leases(queue: QueuedRuns) -> None:
    claimer = Claimer(queue)
    need = Requirements(min_cores=1000)
    shape = queue.db.now_write(lambda tx: put_shape(tx, need))
    run = a_queued_run()._replace(shape=shape)
    queue.db.now_write(lambda tx: tx.runs.insert(run, "{}"))
    queue.lanes.reconcile(queue.db.now_read(lambda tx: tx.runs.lanes()))
    claimer.claim()
    granted, calls = claimer.claim()
    assert granted == []
    assert {call.partition(".")[0] for call in calls} == {"hosts", "leases"}
