"""What is asked of an executor, whatever breaks meanwhile: one cohort per intent, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.adapters.secrets.cipher import FileCipher
from corral.core.audit import Author
from corral.core.placements import executors
from corral.core.placements.close import lose
from corral.core.placements.orders import OrderDesk
from corral.core.placements.place import Placing
from corral.core.placements.placer import Placer
from corral.core.placements.why import placement_notes, placement_summary
from corral.core.queue.claim import Claim, ClaimTerms
from corral.core.queue.grants import Grant
from corral.domain.canonical import canonical
from corral.domain.errors import Conflict, InvalidInput
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import RunId, TokenId
from corral.domain.placements.orders import (
    Capacity,
    Launched,
    LaunchOrder,
    PreflightCheck,
    RankSighting,
    SightCause,
    Sighting,
    SightState,
)
from corral.domain.placements.placements import ExecutorKind, ExecutorRecord, Placement, PlacementState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState
from corral.domain.tokens import Token, hash_secret, parse_token
from corral.ports.executor import ExecutorUnreachable, LaunchRefused
from corral.store.transaction import Tx

BY = Author("user:ada", "test", 0.0)
MINUTE = 60.0


@dataclass
class Cluster:
    """What runs there, by launch key; kept apart from the executor, which a new server makes anew."""

    launched: dict[str, LaunchOrder] = field(default_factory=dict)
    launches: int = 0
    ended: dict[str, str] = field(default_factory=dict)
    foreign: list[Launched] = field(default_factory=list)
    lose_answer: bool = False
    away: bool = False
    refuses: str | None = None
    asked: int = 0


@dataclass
class ClusterExecutor:
    """Speaks to the cluster as the port demands; whether adapters do is what their contract suite shows."""

    cluster: Cluster

    def preflight(self) -> Sequence[PreflightCheck]:
        return [PreflightCheck("reach", True, "it answers")]

    def capacities(self) -> Sequence[Capacity]:
        return []

    def refusals(self, need: Requirements, ranks: int) -> Sequence[str]:
        return []

    def launch(self, order: LaunchOrder) -> str:
        self._reach()
        if self.cluster.refuses is not None:
            raise LaunchRefused(self.cluster.refuses)
        if order.key not in self.cluster.launched:
            self.cluster.launches += 1
            self.cluster.launched[order.key] = order
        if self.cluster.lose_answer:
            self.cluster.lose_answer = False
            raise ExecutorUnreachable("the answer was lost")
        return f"job/{order.key}"

    def observe(self, handles: Sequence[str]) -> Mapping[str, Sighting]:
        self._reach()
        keys = [handle.removeprefix("job/") for handle in handles]
        return {f"job/{key}": self._sighting(key) for key in keys if key in self.cluster.launched}

    def _sighting(self, key: str) -> Sighting:
        if key in self.cluster.ended:
            rank = RankSighting(0, SightState.FAILED, SightCause.IMAGE, self.cluster.ended[key])
            return Sighting(True, (rank,))
        return Sighting(False, (RankSighting(0, SightState.RUNNING, node="n1"),))

    def logs(self, handle: str, rank: int, *, most_bytes: int) -> str:
        return ""

    def cancel(self, handle: str) -> None:
        self._reach()
        self.cluster.launched.pop(handle.removeprefix("job/"), None)

    def launched(self, installation: str) -> Sequence[Launched]:
        self._reach()
        mine = [Launched(key, f"job/{key}") for key in self.cluster.launched]
        return [*mine, *self.cluster.foreign]

    def close(self) -> None:
        return

    def _reach(self) -> None:
        self.cluster.asked += 1
        if self.cluster.away:
            raise ExecutorUnreachable("nobody answers")


@dataclass
class Clusters:
    by_name: dict[str, Cluster] = field(default_factory=dict)

    def checked(self, kind: ExecutorKind, options: Mapping[str, object]) -> dict[str, object]:
        return dict(options)

    def open(self, record: ExecutorRecord) -> ClusterExecutor:
        return ClusterExecutor(self.by_name.setdefault(record.name, Cluster()))


class Yard(QueueOfHosts):
    """A queue whose runs go to clusters."""

    def __init__(self, cipher: FileCipher) -> None:
        super().__init__()
        self.cipher = cipher
        self.clusters = Clusters()
        self.new_server()

    def new_server(self) -> None:
        self.restart()
        placing = Placing(self.board, self.policy, self.cipher)
        self.placer = Placer(
            self.db,
            self.clock,
            placing,
            OrderDesk(placing),
            self.clusters,
            _here,
        )

    def executor(self, name: str) -> Cluster:
        options = {"url": "http://corral.test"}
        self.db.now_write(lambda tx: executors.add(tx, name, ExecutorKind.SLURM, options, by=BY))
        return self.clusters.by_name.setdefault(name, Cluster())

    def round(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(2.0)
            self.db.do(self.sweeper.sweep())
            self.db.do(self.placer.round())

    def until(self, holds: Callable[[], bool], rounds: int = 400) -> None:
        for _ in range(rounds):
            if holds():
                return
            self.round()
        raise AssertionError(f"not after {rounds} rounds")

    def placements(self, run_id: RunId) -> list[Placement]:
        return self.db.now_read(lambda tx: tx.placements.of_run(run_id))

    def worker(self, run_id: RunId, rank: int) -> list[Grant]:
        """The worker of a rank asks, as it does when it has come up."""
        host = self.db.now_read(lambda tx: tx.hosts.by_name(f"run-{run_id.removeprefix('r-')}-{rank}"))
        assert host is not None
        self._requests += 1
        machine = {"hostname": f"node-{rank}", "os": "linux", "arch": "x86_64", "cores": 8}
        gpus = [{"index": 0, "name": "A100", "memory_bytes": 80 << 30}]
        ask = ClaimTerms(
            host_id=host.id,
            boot_id=f"boot-{rank}",
            request_id=f"claim-{self._requests}",
            slots=1,
            max_leases=1,
            draining=False,
            capability=canonical({**machine, "gpus": gpus, "address": f"10.0.0.{rank + 1}"}),
            holding=None,
            only=run_id,
        )
        return list(self.db.now_write(Claim(self.board, self.policy, ask, self.clock.now)).grants)


async def _here(work: Callable[[], Any]) -> Any:
    return work()


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard(FileCipher(b"0" * 32))
    yield made
    made.db.end()


def placed(yard: Yard, *names: str, ranks: int = 1, most: int | None = None) -> RunId:
    needs = {"executors": names}
    return yard.submit(gpus=1, ranks=ranks, most_ranks=most, needs=needs, lost=3)


def test_the_intent_is_written_before_anything_is_asked_for(yard: Yard) -> None:
    """DL-D13: a launch that nobody remembers; promise 7: intent before anything is asked for."""
    cluster = yard.executor("hpc")
    cluster.away = True
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()

    [intent] = yard.placements(run_id)
    assert intent.state is PlacementState.INTENDED
    assert intent.handle is None
    assert (intent.why or "").startswith("nobody answers")
    assert yard.run(run_id).state is RunState.PLACING
    cluster.away = False
    yard.until(lambda: yard.placements(run_id)[0].state is PlacementState.LAUNCHED)
    assert cluster.launches == 1


def test_a_lost_answer_and_a_new_server_make_no_second_cohort(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    cluster.lose_answer = True
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()
    assert cluster.launches == 1
    yard.new_server()
    yard.until(lambda: yard.placements(run_id)[0].state is PlacementState.LAUNCHED)

    [placement] = yard.placements(run_id)
    assert cluster.launches == 1
    assert placement.handle == f"job/{placement.launch_key}"


def test_a_repeated_launch_brings_the_same_tokens(yard: Yard) -> None:
    """Or the workers of the first try, whose answer was lost, would never get in."""
    cluster = yard.executor("hpc")
    cluster.lose_answer = True
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()
    [first] = cluster.launched.values()
    yard.new_server()
    cluster.launched.clear()
    yard.until(lambda: bool(cluster.launched))

    [again] = cluster.launched.values()
    assert again.tokens == first.tokens
    [placement] = yard.placements(run_id)
    assert all(token not in (placement.sealed or "") for token in first.tokens)
    for token in first.tokens:
        parsed = parse_token(token)
        assert parsed is not None
        kept = yard.db.now_read(partial(_token, token_id=parsed[0]))
        assert kept is not None
        assert (kept.hash, kept.run_id) == (hash_secret(parsed[1]), run_id)


def _token(tx: Tx, *, token_id: TokenId) -> Token | None:
    return tx.tokens.get(token_id)


def test_a_gang_starts_when_all_its_workers_are_there(yard: Yard) -> None:
    yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=4)
    yard.round()
    for rank in (2, 0, 3):
        assert yard.worker(run_id, rank) == []

    [grant] = yard.worker(run_id, 1)

    assert grant.lease.rank == 1
    assert yard.run(run_id).state is RunState.RUNNING
    assert [yard.worker(run_id, rank)[0].lease.rank for rank in (0, 2, 3)] == [0, 2, 3]
    assert grant.place is not None
    assert grant.place.master_addr == "10.0.0.1"


def test_hosts_that_joined_get_no_run_that_is_for_executors(yard: Yard) -> None:
    yard.executor("hpc")
    yard.host("mine", gpus=8)
    run_id = placed(yard, "hpc")
    assert yard.claim("mine") == []
    yard.round()
    assert yard.claim("mine") == []
    [grant] = yard.worker(run_id, 0)
    assert grant.run.id == run_id


def test_own_hosts_that_are_named_first_have_a_while(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    yard.host("mine", gpus=1)
    first, second = (placed(yard, "fleet", "hpc") for _ in range(2))
    assert yard.claimed("mine") == [first]
    yard.round(5)
    assert not cluster.launched
    yard.until(lambda: bool(cluster.launched))
    assert yard.run(second).state is RunState.PLACING


def test_the_workers_of_a_run_go_when_it_has_ended(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round()
    [grant] = yard.worker(run_id, 0)
    yard.end(grant)

    yard.until(lambda: not cluster.launched)
    yard.round()

    [placement] = yard.placements(run_id)
    assert placement.state is PlacementState.CLOSED
    assert placement.sealed is None
    assert not placement.lost
    assert yard.run(run_id).state is RunState.SUCCEEDED


@pytest.mark.parametrize("launched", [False, True])
def test_a_cancel_while_it_is_placed_leaves_nothing(yard: Yard, launched: bool) -> None:
    """DL-D: cancel during start. Also where the answer to the launch was lost: by its key it is found."""
    cluster = yard.executor("hpc")
    cluster.lose_answer = not launched
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()
    assert len(cluster.launched) == 1
    yard.cancel(run_id)
    assert yard.run(run_id).state is RunState.CANCELLED

    yard.until(lambda: yard.placements(run_id)[0].state is PlacementState.CLOSED)

    assert not cluster.launched
    assert cluster.launches == 1


def test_a_cluster_that_is_away_is_told_to_end_it_when_it_is_back(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round()
    cluster.away = True
    yard.cancel(run_id)
    yard.round(5)
    assert yard.placements(run_id)[0].state is PlacementState.CLOSING
    assert cluster.launched
    cluster.away = False
    yard.until(lambda: yard.placements(run_id)[0].state is PlacementState.CLOSED)
    assert not cluster.launched


def test_what_ends_without_having_run_is_tried_again_and_then_failed_with_the_clusters_words(
    yard: Yard,
) -> None:
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    said = 'image "corral:none" cannot be pulled'

    def over() -> bool:
        cluster.ended |= dict.fromkeys(cluster.launched, said)
        return yard.run(run_id).state is RunState.FAILED

    yard.until(over)

    run = yard.run(run_id)
    assert run.reason is Reason.PLACEMENT_LOST
    assert said in (run.detail or "")
    assert len(yard.placements(run_id)) == 4
    assert all(placement.lost for placement in yard.placements(run_id))
    yard.until(lambda: all(one.state is PlacementState.CLOSED for one in yard.placements(run_id)))
    assert not cluster.launched


def test_the_next_executor_is_asked_when_one_refuses(yard: Yard) -> None:
    full, other = yard.executor("full"), yard.executor("other")
    full.refuses = "Requested node configuration is not available"
    run_id = placed(yard, "full", "other", ranks=8)
    yard.until(lambda: bool(other.launched))
    assert [one.executor for one in yard.placements(run_id)] == ["full", "other"]
    assert full.refuses in (yard.placements(run_id)[0].why or "")


def test_what_every_executor_refuses_has_failed_with_the_words_of_each(yard: Yard) -> None:
    """More ranks than could ever fit, on any executor."""
    for name in ("one", "two"):
        yard.executor(name).refuses = f"{name} has no such nodes"
    run_id = placed(yard, "one", "two", ranks=8)
    yard.until(lambda: yard.run(run_id).state is RunState.FAILED)

    run = yard.run(run_id)
    assert run.reason is Reason.NO_CAPACITY
    assert "two has no such nodes" in (run.detail or "")
    assert len(yard.placements(run_id)) == 2


def test_workers_that_are_still_there_take_the_next_attempt(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()
    yard.worker(run_id, 0)
    [second] = yard.worker(run_id, 1)
    [first] = yard.worker(run_id, 0)
    yard.end(first, "fail", Reason.HOST_FAULT)
    yard.until(lambda: yard.run(run_id).state is RunState.QUEUED)
    assert second.lease.rank == 1

    yard.worker(run_id, 0)
    assert yard.worker(run_id, 1)
    yard.round()

    assert yard.run(run_id).attempt == 2
    assert cluster.launches == 1
    assert len(yard.placements(run_id)) == 1


def test_what_bears_our_mark_and_belongs_to_nothing_is_ended_and_nothing_else(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round()
    [order] = cluster.launched.values()
    orphan = order._replace(key="corral-bcdfghjkmnpq")
    other = order._replace(key="somebody-elses")
    cluster.launched |= {orphan.key: orphan, other.key: other}
    yard.until(lambda: orphan.key not in cluster.launched)
    assert set(cluster.launched) == {order.key, other.key}
    assert yard.run(run_id).state is RunState.PLACING


def test_one_look_for_all_placements_of_an_executor(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    for _ in range(20):
        placed(yard, "hpc")
    yard.until(lambda: len(cluster.launched) == 20)
    yard.round()
    before = cluster.asked
    yard.round()
    assert cluster.asked - before <= 2


def test_an_executor_that_is_removed_while_its_ranks_wait(yard: Yard) -> None:
    """An executor removed while its ranks run: refused, or with force nothing is lost or left."""
    cluster, other = yard.executor("hpc"), yard.executor("other")
    run_id = placed(yard, "hpc", "other")
    yard.round()
    with pytest.raises(Conflict, match=f"has workers for 1 run: {run_id}"):
        yard.db.now_write(lambda tx: executors.remove(tx, "hpc", by=BY, force=False))

    def forced(tx: Any) -> None:
        for placement in executors.remove(tx, "hpc", by=BY._replace(now=yard.clock.now()), force=True):
            lose(tx, placement.id, Reason.PLACEMENT_LOST, "it was removed", now=yard.clock.now())

    yard.db.now_write(forced)
    yard.until(lambda: bool(other.launched))
    assert not cluster.launched
    assert yard.run(run_id).state is RunState.PLACING
    assert yard.db.now_read(lambda tx: tx.executors.get("hpc")) is None


def test_a_run_that_names_an_executor_that_is_not_there_is_refused(yard: Yard) -> None:
    yard.executor("hpc")
    with pytest.raises(InvalidInput, match="names slurm; there is hpc, fleet"):
        placed(yard, "slurm")
    with pytest.raises(InvalidInput, match="no executor can be called fleet"):
        yard.executor("fleet")
    with pytest.raises(Conflict, match="executor hpc is there already"):
        yard.executor("hpc")


def test_an_elastic_gang_starts_with_the_fewest_that_it_must_have(yard: Yard) -> None:
    yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=2, most=3)
    yard.round()
    assert yard.worker(run_id, 2) == []
    [grant] = yard.worker(run_id, 0)
    assert yard.run(run_id).state is RunState.RUNNING
    assert grant.run.elastic


def test_why_says_what_the_executor_was_asked_for_and_what_it_told(yard: Yard) -> None:
    """Executors too: every reason why not, in the cluster's own words."""
    full, hpc = yard.executor("full"), yard.executor("hpc")
    full.refuses = "no such nodes"
    run_id = placed(yard, "full", "hpc", ranks=2)

    def why() -> tuple[str | None, list[str]]:
        run, now = yard.run(run_id), yard.clock.now()

        def unit(tx: Tx) -> tuple[str | None, list[str]]:
            need = yard.board.shapes.get(tx, run.shape)
            notes = placement_notes(tx, run, need, policy=yard.policy)
            return placement_summary(tx, run, need, now=now), notes

        return yard.db.now_read(unit)

    assert why() == ("queued: next the executors full, hpc are asked, in this order", [])
    hpc.away = True
    yard.until(lambda: len(yard.placements(run_id)) == 2 and yard.placements(run_id)[1].tries > 0)
    said, notes = why()
    assert said is not None
    assert said.startswith("placing: executor hpc is asked for 2 workers, which failed")
    assert notes == ["executor full did not serve it: no such nodes"]
    hpc.away = False
    yard.until(lambda: yard.placements(run_id)[1].state is PlacementState.LAUNCHED)
    yard.worker(run_id, 1)
    said, _ = why()
    assert said is not None
    assert "was asked for 2 workers" in said
    assert "1 has come" in said


def test_an_executor_whose_runs_have_ended_can_go_before_their_workers_have(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round()
    [grant] = yard.worker(run_id, 0)
    yard.end(grant)
    cluster.away = True

    yard.db.now_write(lambda tx: executors.remove(tx, "hpc", by=BY._replace(now=1.0), force=False))
    yard.round(3)
    assert cluster.launched

    cluster.away = False
    yard.until(lambda: yard.db.now_read(lambda tx: tx.executors.get("hpc")) is None)
    assert not cluster.launched
