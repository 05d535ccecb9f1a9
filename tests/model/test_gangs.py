"""Several ranks through the core, put into the store as they run: how they end, come back and begin again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest
from contract.samples import a_host, a_lease, a_run
from support.clock import ManualClock

from corral.core.leases.fence import expire
from corral.core.leases.heartbeat import beat
from corral.core.leases.outcomes import LeaseEnder, LeaseOutcome, LeaseReport
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.grants import Grant
from corral.core.queue.grow import growing
from corral.core.queue.lanes import Lanes
from corral.core.runs.cancel import cancel
from corral.core.runs.limits import force_stop
from corral.core.runs.shapes import put_shape
from corral.core.runs.transitions import born
from corral.core.storage.fsck import check_run
from corral.domain.canonical import canonical
from corral.domain.errors import LeaseLost
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import ArtifactId
from corral.domain.leases import Lease, LeaseState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Attempt, Rank
from corral.domain.runs.states import RankState, RunState
from corral.store.sqlite.store import MEMORY, SqliteStore
from corral.store.transaction import Tx

T = TypeVar("T")
_NUMBERS = itertools.count()
POLICY = ServerPolicy()


class Gang:
    """A run of several ranks, each with a live lease on a host of its own."""

    def __init__(
        self, size: int, *, elastic: bool = False, minimum: int | None = None, kind: str = "command"
    ) -> None:
        self.store = SqliteStore(MEMORY)
        self.clock = ManualClock()
        self.shares = Shares()
        self.board = Board(Lanes(), Shapes(), self.shares)
        self._runner = asyncio.Runner()
        self.granted: Sequence[Grant] = []
        self.run = a_run(
            kind=kind,
            world_size=size,
            min_ranks=minimum or size,
            elastic=elastic,
            state=RunState.QUEUED,
            retry_code=0,
        )
        self.leases = self.write(self._start)

    def _start(self, tx: Tx) -> list[Lease]:
        shape = put_shape(tx, Requirements(ranks=self.run.min_ranks, most_ranks=self.run.world_size))
        self.run = self.run._replace(shape=shape)
        tx.runs.insert(self.run, "{}")
        born(tx, self.run, actor="user:ada")
        now = self.clock.now()
        tx.attempts.open(Attempt(self.run.id, 1, now, None))
        leases = []
        for rank in range(self.run.world_size):
            host = a_host(slots=1)
            tx.hosts.insert(host)
            lease = a_lease(
                self.run, rank=rank, epoch=rank + 1, host_id=host.id, granted_at=now, expires_at=now + 30
            )._replace(beaten_at=now, active_at=now)
            tx.leases.insert(lease)
            tx.attempts.insert_rank(
                Rank(self.run.id, 1, rank, RankState.RUNNING, lease.epoch, lease.id, None, None)
            )
            leases.append(lease)
        self.run = self.run._replace(state=RunState.RUNNING, attempt=1, epoch=self.run.world_size)
        tx.runs.save(self.run)
        return leases

    def write(self, unit: Callable[[Tx], T]) -> T:
        return self._runner.run(self.store.write(unit))

    def end(
        self,
        rank: int,
        kind: str,
        reason: Reason = Reason.FINISHED,
        *,
        artifact_id: ArtifactId | None = None,
    ) -> LeaseOutcome:
        lease = self.leases[rank]
        report = LeaseReport(kind, reason, ran_s=1.0, artifact_id=artifact_id)
        return self.write(
            lambda tx: LeaseEnder(POLICY, self.shares).end(tx, lease.key, report, now=self.clock.now())
        )

    def beat(self, rank: int) -> str:
        lease = self.leases[rank]
        done = self.write(
            lambda tx: beat(
                tx,
                lease.key,
                progress="{}",
                sample="{}",
                active_s_ago=0.0,
                now=self.clock.now(),
                policy=POLICY,
            )
        )
        return str(done.action)

    def states(self, attempt: int = 1) -> tuple[str, list[str]]:
        def unit(tx: Tx) -> tuple[str, list[str]]:
            run = tx.runs.get(self.run.id)
            assert run is not None
            return str(run.state), [str(rank.state) for rank in tx.attempts.ranks(run.id, attempt)]

        return self.write(unit)

    def problems(self) -> list[str]:
        # The rows that the test put in itself have no events.
        found = self.write(lambda tx: check_run(tx, self.run.id))
        return [problem for problem in found if "event" not in problem]

    def lose(self, *ranks: int) -> None:
        self.clock.advance(31)
        for lease in self.leases:
            if lease.rank not in ranks:
                self.beat(lease.rank)
        for rank in ranks:
            self.expire(self.leases[rank])

    def expire(self, lease: Lease) -> None:
        self.write(lambda tx: expire(tx, lease.id, now=self.clock.now(), policy=POLICY, shares=self.shares))

    def new_host(self, slots: int = 1) -> Host:
        host = a_host(slots=slots)
        self.write(lambda tx: tx.hosts.insert(host))
        return host

    def claim(self, host: Host, leases: int = 1) -> list[Lease]:
        """What the host is given, at its next poll."""
        about = {"hostname": host.name, "os": "linux", "arch": "x86_64", "address": "10.0.0.1"}
        ask = ClaimTerms(
            host_id=host.id,
            boot_id=f"boot-{host.id}",
            request_id=f"claim-{next(_NUMBERS)}",
            slots=host.slots,
            max_leases=leases,
            draining=False,
            capability=canonical(about),
            holding=None,
        )

        def unit(tx: Tx) -> list[Lease]:
            self.board.lanes.reconcile(tx.runs.lanes())
            self.board.growth.reconcile(growing(tx))
            claim = Claim(self.board, POLICY, ask, self.clock.now)
            self.granted = claim(tx).grants
            return [grant.lease for grant in self.granted]

        return self.write(unit)

    def close(self) -> None:
        self._runner.run(self.store.close())
        self._runner.close()


@pytest.fixture(params=[2, 3])
def gang(request: pytest.FixtureRequest) -> Iterator[Gang]:
    made = Gang(request.param)
    yield made
    made.close()


@pytest.fixture
def elastic() -> Iterator[Gang]:
    made = Gang(3, elastic=True, minimum=2)
    yield made
    made.close()


def test_a_gang_has_finished_when_its_last_rank_is_done(gang: Gang) -> None:
    for rank in range(1, gang.run.world_size):
        assert gang.end(rank, "finish").run_state == "running"
    assert gang.end(0, "finish") == ("succeeded", "done")
    assert gang.states() == ("succeeded", ["done"] * gang.run.world_size)
    assert gang.problems() == []


@pytest.mark.parametrize("kind", ["fail", "stopped"])
def test_the_first_rank_that_ends_fences_all_of_a_fixed_gang(gang: Gang, kind: str) -> None:
    gang.end(1, kind, Reason.PREEMPTED)
    assert gang.states() == ("queued", ["ended"] * gang.run.world_size)
    with pytest.raises(LeaseLost):
        gang.end(0, "finish")
    assert gang.beat(0) == "lost"
    assert gang.problems() == []


def test_a_lost_host_fences_all_of_a_fixed_gang_and_is_charged_once(gang: Gang) -> None:
    gang.lose(0)
    assert gang.states() == ("queued", ["ended"] * gang.run.world_size)
    found = gang.write(lambda tx: tx.runs.get(gang.run.id))
    assert found is not None
    assert found.used_infrastructure == 1
    assert gang.beat(1) == "lost"
    assert gang.problems() == []


def test_a_done_rank_stays_done_when_another_fails(gang: Gang) -> None:
    gang.end(0, "finish")
    gang.end(1, "fail", Reason.CODE_ERROR)
    state, ranks = gang.states()
    assert (state, ranks[0], set(ranks[1:])) == ("failed", "done", {"ended"})
    assert gang.problems() == []


def test_a_cancel_reaches_every_rank(gang: Gang) -> None:
    gang.write(
        lambda tx: cancel(tx, gang.run.id, reason="", actor="user:ada", now=gang.clock.now(), policy=POLICY)
    )
    assert gang.states() == ("stopping", ["stopping"] * gang.run.world_size)
    assert {gang.beat(rank) for rank in range(gang.run.world_size)} == {"stop"}
    gang.clock.advance(1000)
    gang.write(lambda tx: force_stop(tx, gang.run.id, now=gang.clock.now(), shares=gang.shares))
    assert gang.states() == ("cancelled", ["ended"] * gang.run.world_size)
    assert gang.problems() == []


def test_a_host_of_a_fixed_gang_that_returns_in_time_keeps_its_work(gang: Gang) -> None:
    gang.lose(0)
    assert gang.beat(0) == "continue"
    assert gang.problems() == []


def test_after_a_gang_was_fenced_the_next_claim_opens_a_new_attempt() -> None:
    made = Gang(2)
    try:
        made.write(lambda tx: _wait_again(tx, made))
        made.lose(0)
        leases = made.claim(made.new_host(slots=2), leases=2)
        assert [(lease.attempt, lease.rank) for lease in leases] == [(2, 0), (2, 1)]
        assert made.problems() == []
    finally:
        made.close()


def _wait_again(tx: Tx, gang: Gang) -> None:
    """Rank 1 was never claimed: the gang had only begun."""
    rank = tx.attempts.rank(gang.run.id, 1, 1)
    assert rank is not None
    tx.attempts.save_rank(rank._replace(state=RankState.WAITING, lease_id=None))
    tx.leases.save(gang.leases[1]._replace(state=LeaseState.CLOSED))
    gang.leases.pop()


def test_every_rank_of_a_queued_gang_can_be_claimed(gang: Gang) -> None:
    """All at once or none: hosts that hold a part of it get nothing until the last one asks."""
    gang.end(0, "fail", Reason.PREEMPTED)
    *first, last = [gang.new_host() for _ in range(gang.run.world_size)]
    assert [gang.claim(host) for host in first] == [[] for _ in first]
    leases = [*gang.claim(last), *(lease for host in first for lease in gang.claim(host))]
    assert sorted(lease.rank for lease in leases) == list(range(gang.run.world_size))
    assert len({lease.epoch for lease in leases}) == gang.run.world_size
    assert gang.states(attempt=2) == ("running", ["running"] * gang.run.world_size)
    assert gang.problems() == []


def test_a_cohort_that_does_not_come_together_is_given_back_free_of_charge(gang: Gang) -> None:
    gang.end(0, "fail", Reason.PREEMPTED)
    hosts = [gang.new_host() for _ in range(gang.run.world_size)]
    (mine,) = [lease for host in hosts for lease in gang.claim(host)]
    gang.leases = [mine]
    assert gang.beat(0) == "continue"
    # The other hosts never ask again.
    gang.clock.advance(POLICY.first_beat_s + 1)
    (other, *_) = gang.write(
        lambda tx: [one for one in tx.leases.live_of_run(gang.run.id) if one.id != mine.id]
    )
    gang.write(lambda tx: expire(tx, other.id, now=gang.clock.now(), policy=POLICY, shares=gang.shares))
    assert gang.states(attempt=2) == ("queued", ["ended"] * gang.run.world_size)
    assert gang.beat(0) == "lost"
    found = gang.write(lambda tx: tx.runs.get(gang.run.id))
    assert found is not None
    assert found.used_infrastructure == 1
    assert gang.problems() == []


def test_a_gang_whose_ranks_were_told_does_not_come_back(gang: Gang) -> None:
    gang.lose(0)
    assert gang.beat(1) == "lost"
    assert gang.beat(0) == "lost"
    assert gang.problems() == []


def test_a_stopped_gang_is_settled_by_its_last_rank(gang: Gang) -> None:
    """Each rank has its grace: the first that stops does not take the others' leases."""
    gang.write(
        lambda tx: cancel(tx, gang.run.id, reason="", actor="user:ada", now=gang.clock.now(), policy=POLICY)
    )
    *first, last = range(gang.run.world_size)
    for rank in first:
        assert gang.end(rank, "stopped", Reason.CANCELLED) == ("stopping", "ended")
        assert gang.beat(last) == "stop"
    assert gang.end(last, "stopped", Reason.CANCELLED) == ("cancelled", "ended")
    assert gang.problems() == []


def test_the_wall_time_of_a_gang_is_counted_once(gang: Gang) -> None:
    for rank in range(gang.run.world_size):
        gang.end(rank, "finish")
    found = gang.write(lambda tx: tx.runs.get(gang.run.id))
    assert found is not None
    assert found.ran_s == 1.0


def test_an_elastic_gang_goes_on_without_a_rank_while_the_minimum_runs(elastic: Gang) -> None:
    elastic.lose(2)
    assert elastic.states()[0] == "running"
    assert elastic.problems() == []


def test_another_host_takes_the_rank_that_an_elastic_gang_lost(elastic: Gang) -> None:
    elastic.lose(2)
    (lease,) = elastic.claim(elastic.new_host())
    assert (lease.attempt, lease.rank, lease.epoch) == (1, 2, 4)
    assert elastic.states() == ("running", ["running"] * 3)
    assert elastic.beat(2) == "lost"
    assert elastic.problems() == []


def test_a_lost_rank_of_an_elastic_gang_that_returns_keeps_its_work(elastic: Gang) -> None:
    elastic.lose(2)
    assert elastic.beat(2) == "continue"
    assert elastic.states() == ("running", ["running"] * 3)
    found = elastic.write(lambda tx: tx.runs.get(elastic.run.id))
    assert found is not None
    assert found.used_infrastructure == 0
    assert elastic.problems() == []


def test_below_its_minimum_an_elastic_gang_begins_again_as_a_whole(elastic: Gang) -> None:
    elastic.lose(2, 1)
    assert elastic.states() == ("queued", ["ended"] * 3)
    leases = elastic.claim(elastic.new_host(slots=2), leases=2)
    assert [(lease.attempt, lease.rank) for lease in leases] == [(2, 0), (2, 1)]
    assert elastic.states(attempt=2) == ("running", ["running", "running", "waiting"])
    assert elastic.problems() == []


def test_ranks_that_never_began_do_not_keep_an_elastic_gang_from_its_end(elastic: Gang) -> None:
    elastic.lose(2, 1)
    elastic.leases = elastic.claim(elastic.new_host(slots=2), leases=2)
    assert elastic.end(1, "finish") == ("running", "done")
    assert elastic.end(0, "finish") == ("succeeded", "done")
    assert elastic.states(attempt=2) == ("succeeded", ["done", "done", "retired"])
    assert elastic.problems() == []
