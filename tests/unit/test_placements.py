"""What is asked of an executor, whatever breaks meanwhile: one cohort per intent, and nothing left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.adapters.secrets.cipher import FileCipher
from corral.core.audit import Author
from corral.core.hosts.enroll import RUN_HOST_S, retire_run_hosts
from corral.core.hosts.names import host_name, run_host_name
from corral.core.placements import executors
from corral.core.placements.close import lose
from corral.core.placements.orders import OrderDesk
from corral.core.placements.place import MOST_INTENDED, Placing
from corral.core.placements.placer import Placer
from corral.core.placements.why import placement_notes, placement_summary
from corral.core.queue.claim import Claim, ClaimTerms
from corral.core.queue.grants import Grant
from corral.core.queue.why import WhyQuestion, standings
from corral.core.topics import TOPIC_ASSIGNED
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
from corral.server.tls import TlsTrust
from corral.store.transaction import Tx

BY = Author("user:ada", "test", 0.0)
MINUTE = 60.0


@dataclass
class Cluster:
    """What runs there, by launch key; kept apart from the executor, which a new server makes anew."""

    launched: dict[str, LaunchOrder] = field(default_factory=dict)
    launches: int = 0
    ended: dict[str, str] = field(default_factory=dict)
    # By launch key: the ranks whose workers are gone for good, while others go on.
    over: dict[str, set[int]] = field(default_factory=dict)
    # Why those are, as the cluster has it.
    cause: SightCause = SightCause.EXITED
    foreign: list[Launched] = field(default_factory=list)
    lose_answer: bool = False
    away: bool = False
    refuses: str | None = None
    most_ranks: int | None = None
    asked: int = 0
    # Whoever asks waits for it, as for a cluster whose network swallows everything.
    answers: threading.Event | None = None


@dataclass
class ClusterExecutor:
    """Speaks to the cluster as the port demands; whether adapters do is what their contract suite shows."""

    cluster: Cluster

    def preflight(self) -> Sequence[PreflightCheck]:
        if self.cluster.answers is not None:
            self.cluster.answers.wait()
        return [PreflightCheck("reach", True, "it answers")]

    def capacities(self) -> Sequence[Capacity]:
        return []

    def refusals(self, need: Requirements, ranks: int) -> Sequence[str]:
        self._reach()
        most = self.cluster.most_ranks
        return [] if most is None or ranks <= most else [f"the cluster holds {most} ranks"]

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
        over = self.cluster.over.get(key, set())
        ranks = range(self.cluster.launched[key].ranks)
        if set(ranks) <= over:
            return Sighting(True, tuple(self._failed(rank) for rank in ranks))
        running = {rank: RankSighting(rank, SightState.RUNNING, node="n1") for rank in ranks}
        return Sighting(False, tuple(self._failed(rank) if rank in over else running[rank] for rank in ranks))

    def _failed(self, rank: int) -> RankSighting:
        return RankSighting(rank, SightState.FAILED, self.cluster.cause, "killed by signal 9")

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
        if self.cluster.answers is not None:
            self.cluster.answers.wait()
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

    def worker(self, run_id: RunId, rank: int, *, boot: int = 1) -> list[Grant]:
        """The worker of a rank asks, as it does when it has come up."""
        host = self.db.now_read(lambda tx: tx.hosts.by_name(f"run-{run_id.removeprefix('r-')}-{rank}"))
        assert host is not None
        self._requests += 1
        machine = {"hostname": f"node-{rank}", "os": "linux", "arch": "x86_64", "cores": 8}
        gpus = [{"index": 0, "name": "A100", "memory_bytes": 80 << 30}]
        ask = ClaimTerms(
            host_id=host.id,
            boot_id=f"boot-{rank}-{boot}",
            request_id=f"claim-{self._requests}",
            slots=1,
            max_leases=1,
            draining=False,
            capability=canonical({**machine, "gpus": gpus, "address": f"10.0.0.{rank + 1}"}),
            holding=() if boot > 1 else None,
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


def test_a_cluster_where_nothing_changes_is_asked_every_ten_seconds(yard: Yard) -> None:
    """And every two while something does. What ends there is seen all the same."""
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round(3)
    yard.worker(run_id, 0)
    before = cluster.asked
    yard.round(20)
    assert cluster.asked - before == 4
    [key] = cluster.launched
    cluster.ended[key] = "the node is gone"
    yard.until(lambda: yard.placements(run_id)[0].state is not PlacementState.LAUNCHED, rounds=5)


def test_workers_of_a_run_that_is_queued_again_are_told_at_once(yard: Yard) -> None:
    """Although their cluster is not asked for a while."""
    yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round(3)
    [grant] = yard.worker(run_id, 0)
    yard.round(3)
    yard.end(grant, "fail", Reason.HOST_FAULT)
    assert yard.run(run_id).state is RunState.QUEUED
    heard: list[str] = []
    yard.db.subscribe(lambda topic, key: heard.append(topic))
    yard.round()
    assert TOPIC_ASSIGNED in heard


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


def test_a_cluster_that_is_away_for_days_is_asked_again_when_it_is_back(yard: Yard) -> None:
    """After a thousand tries the pause is still a minute, and the others have their turn."""
    cluster, other = yard.executor("hpc"), yard.executor("other")
    cluster.away = True
    run_id = placed(yard, "hpc")
    yard.round()

    def often(tx: Tx) -> None:
        tx.placements.save(tx.placements.of_run(run_id)[0]._replace(tries=5000, try_at=None))

    yard.db.now_write(often)
    placed(yard, "other")
    yard.round()
    assert len(other.launched) == 1

    cluster.away = False
    yard.until(lambda: len(cluster.launched) == 1, rounds=40)


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


def test_what_an_executor_refuses_waits_for_own_hosts_and_costs_nothing(yard: Yard) -> None:
    """It is asked once: asked again it would say the same, until the run had no retry left."""
    cluster = yard.executor("hpc")
    cluster.refuses = "no such nodes"
    yard.host("mine", gpus=1)
    placed(yard, "fleet", "hpc")
    [busy] = yard.claim("mine")
    run_id = yard.submit(gpus=1, needs={"executors": ("fleet", "hpc")}, lost=0)
    yard.until(lambda: bool(yard.placements(run_id)))
    for _ in range(200):
        yard.beat(busy)
        yard.round()

    assert (yard.run(run_id).state, len(yard.placements(run_id))) == (RunState.QUEUED, 1)
    assert yard.run(run_id).used_infrastructure == 0
    yard.end(busy)
    assert yard.claimed("mine") == [run_id]


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


def forced(yard: Yard, name: str) -> Callable[[Tx], None]:
    """Its removal as the server does it."""
    now = yard.clock.now()

    def unit(tx: Tx) -> None:
        for placement in executors.remove(tx, name, by=BY._replace(now=now), force=True):
            lose(tx, placement.id, Reason.PLACEMENT_LOST, "it was removed", now=now)

    return unit


def test_an_executor_that_is_removed_while_its_ranks_wait(yard: Yard) -> None:
    """An executor removed while its ranks run: refused, or with force nothing is lost or left."""
    cluster, other = yard.executor("hpc"), yard.executor("other")
    run_id = placed(yard, "hpc", "other")
    yard.round()
    with pytest.raises(Conflict, match=f"has workers for 1 run: {run_id}"):
        yard.db.now_write(lambda tx: executors.remove(tx, "hpc", by=BY, force=False))

    yard.db.now_write(forced(yard, "hpc"))
    yard.until(lambda: bool(other.launched))
    assert not cluster.launched
    assert yard.run(run_id).state is RunState.PLACING
    assert yard.db.now_read(lambda tx: tx.executors.get("hpc")) is None


def test_an_executor_that_is_removed_while_its_ranks_run(yard: Yard) -> None:
    """Refused; with force its workers are shut out and ended, and the run waits with the reason."""
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()
    yard.worker(run_id, 0)
    [grant] = yard.worker(run_id, 1)
    yard.beat(grant)
    with pytest.raises(Conflict, match=f"has workers for 1 run: {run_id}"):
        yard.db.now_write(lambda tx: executors.remove(tx, "hpc", by=BY, force=False))

    yard.db.now_write(forced(yard, "hpc"))

    assert yard.db.now_read(lambda tx: tx.tokens.of_run(run_id)) == []
    yard.until(lambda: yard.run(run_id).state is RunState.QUEUED)
    assert not cluster.launched
    run = yard.run(run_id)
    said = yard.db.now_read(
        lambda tx: placement_summary(tx, run, yard.board.shapes.get(tx, run.shape), now=yard.clock.now())
    )
    assert said == "queued: of the executors that it names (hpc) none is there; `corral executors add`"


def test_a_run_that_names_an_executor_that_is_not_there_is_refused(yard: Yard) -> None:
    yard.executor("hpc")
    with pytest.raises(InvalidInput, match="names slurm; there is hpc, fleet"):
        placed(yard, "slurm")
    with pytest.raises(InvalidInput, match="no executor can be called fleet"):
        yard.executor("fleet")
    with pytest.raises(Conflict, match="executor hpc is there already"):
        yard.executor("hpc")


def test_a_server_that_wants_certificates_of_hosts_asks_no_executor(yard: Yard) -> None:
    """An executor from before that: its workers would be refused one by one, and the run would wait."""
    cluster = yard.executor("hpc")
    why = TlsTrust(hosts_need_certificates=True).shuts_placed_workers_out
    yard.placer.desk = OrderDesk(yard.placer.placing, shut_out=why)
    run_id = placed(yard, "hpc")

    yard.until(lambda: yard.run(run_id).state is RunState.FAILED)

    assert "executor hpc: this server wants client certificates" in (yard.run(run_id).detail or "")
    assert cluster.launches == 0
    need = Requirements(executors=("hpc",))
    refused = yard.db.do(yard.placer.refusals(need))
    assert refused is not None
    assert refused.message == why


def test_an_elastic_gang_starts_with_the_fewest_that_it_must_have(yard: Yard) -> None:
    yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=2, most=3)
    yard.round()
    assert yard.worker(run_id, 2) == []
    [grant] = yard.worker(run_id, 0)
    assert yard.run(run_id).state is RunState.RUNNING
    assert grant.run.elastic


def elastic(yard: Yard, *, ranks: int = 2, most: int = 4) -> tuple[RunId, dict[int, Grant]]:
    """A run of which all workers have come; the grants by the numbers of their workers."""
    run_id = placed(yard, "hpc", ranks=ranks, most=most)
    yard.round()
    grants: dict[int, Grant] = {}
    for number in [*range(most), *range(most)]:
        if number not in grants and (found := yard.worker(run_id, number)):
            grants[number] = found[0]
    assert sorted(grants) == list(range(most))
    return run_id, grants


def test_workers_that_come_after_the_start_join_an_elastic_run(yard: Yard) -> None:
    """DL-D31: it begins with the fewest; each further worker takes a rank of the same attempt."""
    yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=2, most=4)
    yard.round()
    yard.worker(run_id, 0)
    yard.worker(run_id, 3)
    assert yard.run(run_id).state is RunState.RUNNING

    [late] = yard.worker(run_id, 1)
    [later] = yard.worker(run_id, 2)

    assert sorted([late.lease.rank, later.lease.rank]) == [2, 3]
    assert (late.lease.attempt, later.lease.attempt) == (1, 1)
    assert yard.worker(run_id, 2) == []


def test_a_worker_of_another_run_joins_no_elastic_run(yard: Yard) -> None:
    yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=1, most=2)
    other = placed(yard, "hpc", ranks=2)
    yard.round()
    assert yard.worker(run_id, 0)
    assert yard.worker(other, 0) == []


def keep(yard: Yard, grants: dict[int, Grant], *lost: int, rounds: int = 1) -> None:
    for _ in range(rounds):
        for number, grant in grants.items():
            if number not in lost:
                assert yard.beat(grant) == "continue"
        yard.round()


def until_ended(yard: Yard, grants: dict[int, Grant], lost: int) -> None:
    """The lease of a worker that died runs out, while the others are beaten."""
    yard.beat(grants[lost])
    for _ in range(60):
        keep(yard, grants, lost)
        if any(event.type == "rank_ended" for event in yard.events(grants[lost].run.id)):
            return
    raise AssertionError("the lease has not run out")


def test_a_worker_that_is_gone_for_good_is_replaced_while_the_others_go_on(yard: Yard) -> None:
    """DL-D14, DL-D31: one more launch for that worker alone; it takes the rank that was lost."""
    cluster = yard.executor("hpc")
    run_id, grants = elastic(yard)
    [first] = yard.placements(run_id)
    cluster.over[first.launch_key] = {3}
    until_ended(yard, grants, 3)
    keep(yard, grants, 3, rounds=2)

    _, second = yard.placements(run_id)
    order = cluster.launched[second.launch_key]
    assert (second.executor, order.ranks, order.min_ranks, len(order.tokens)) == ("hpc", 1, 1, 1)
    [grant] = yard.worker(run_id, 3, boot=2)
    assert (grant.lease.rank, grant.lease.attempt) == (grants[3].lease.rank, 1)
    assert cluster.launches == 2
    keep(yard, {**grants, 3: grant}, rounds=5)
    assert cluster.launches == 2
    assert (yard.run(run_id).state, yard.run(run_id).attempt) == (RunState.RUNNING, 1)


def test_a_worker_whose_lease_has_not_run_out_is_not_replaced_for_anothers_rank(yard: Yard) -> None:
    """Two are over; the rank of one was given back at once, and the lease of the other still lives."""
    cluster = yard.executor("hpc")
    run_id, grants = elastic(yard)
    cluster.over[yard.placements(run_id)[0].launch_key] = {2, 3}
    yard.end(grants[3], "stopped", Reason.RELEASED)
    keep(yard, grants, 3, rounds=2)

    _, second = yard.placements(run_id)
    made = yard.db.now_read(lambda tx: [token.name for token in tx.tokens.of_run(run_id)])
    assert f"{second.launch_key}-0003" in made
    assert second.ranks == 1
    assert yard.beat(grants[2]) == "continue"


def test_a_worker_that_the_cluster_brings_back_itself_is_not_replaced(yard: Yard) -> None:
    """An evicted pod: the next one has the same token, and takes the rank again at once."""
    cluster = yard.executor("hpc")
    run_id, grants = elastic(yard)

    [grant] = yard.worker(run_id, 2, boot=2)

    assert grant.lease.rank == grants[2].lease.rank
    keep(yard, {**grants, 2: grant}, rounds=5)
    assert cluster.launches == 1


def test_replacements_that_end_at_once_are_asked_for_with_longer_and_longer_pauses(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id, grants = elastic(yard)
    cluster.over[yard.placements(run_id)[0].launch_key] = {3}
    until_ended(yard, grants, 3)
    for _ in range(100):
        cluster.over |= {one.launch_key: {0} for one in yard.placements(run_id)[1:]}
        keep(yard, grants, 3)

    assert 4 <= cluster.launches <= 9
    assert yard.run(run_id).state is RunState.RUNNING
    assert [one.lost for one in yard.placements(run_id)][:3] == [False, True, True]


def test_an_elastic_run_with_too_few_workers_left_gives_all_back_and_is_placed_anew(yard: Yard) -> None:
    """DL-D13: no run holds a part of what it needs while it waits for the rest."""
    cluster = yard.executor("hpc")
    run_id, _ = elastic(yard)
    [first] = yard.placements(run_id)
    cluster.over[first.launch_key] = {1, 2, 3}

    yard.until(lambda: len(yard.placements(run_id)) == 2)

    assert yard.placements(run_id)[0].lost
    assert first.launch_key not in cluster.launched
    assert [one.ranks for one in yard.placements(run_id)] == [4, 4]


@pytest.mark.parametrize("started", [False, True])
def test_a_fixed_gang_that_lost_a_worker_for_good_is_placed_anew(yard: Yard, started: bool) -> None:
    """DL-D13, DL-D14: the cluster keeps the others, which would wait for ever."""
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()
    if started:
        yard.worker(run_id, 0)
        assert yard.worker(run_id, 1)
    [first] = yard.placements(run_id)
    cluster.over[first.launch_key] = {1}

    yard.until(lambda: len(yard.placements(run_id)) == 2)

    assert "killed by signal 9" in (yard.placements(run_id)[0].why or "")
    assert first.launch_key not in cluster.launched


@pytest.mark.parametrize("heard", ["before it began", "first by the cluster", "first by its leases"])
def test_a_gang_that_a_cluster_killed_for_want_of_memory_is_not_tried_again(yard: Yard, heard: str) -> None:
    """HOUR6-02: its workers can tell nobody, and it was placed anew as after a lost host, again and again."""
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc", ranks=2)
    yard.round()
    if heard != "before it began":
        yard.worker(run_id, 0)
        assert yard.worker(run_id, 1)
        [grant] = yard.worker(run_id, 0)
        if heard == "first by its leases":
            yard.end(grant, "stopped", Reason.RELEASED)
            assert yard.run(run_id).state is RunState.QUEUED
    [only] = yard.placements(run_id)
    cluster.cause, cluster.over[only.launch_key] = SightCause.OUT_OF_MEMORY, {0, 1}

    yard.until(lambda: yard.run(run_id).state is RunState.FAILED)

    assert yard.run(run_id).reason is Reason.OUT_OF_MEMORY
    assert "out of memory (killed by signal 9)" in (yard.run(run_id).detail or "")
    assert len(yard.placements(run_id)) == 1


def test_an_elastic_order_is_refused_only_if_its_fewest_do_not_fit(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    cluster.most_ranks = 2
    placed(yard, "hpc", ranks=2, most=64)
    yard.round()
    assert len(cluster.launched) == 1


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


def test_the_tokens_of_a_large_gang_are_made_in_pieces(yard: Yard) -> None:
    """ATK5-02: everybody waits while a transaction lasts; none makes more than some hundred tokens."""
    cluster = yard.executor("hpc")
    cluster.away = True
    run_id = placed(yard, "hpc", ranks=300)
    yard.round()
    [intent] = yard.placements(run_id)
    assert yard.placer.placing.tokens(intent) == ()
    equip = partial(yard.placer.placing.equip, placement_id=intent.id, now=yard.clock.now())

    pieces: list[int] = []
    while sum(pieces) < 300:
        assert yard.db.now_write(equip) is (sum(pieces) + 128 >= 300)
        pieces.append(len(yard.placer.placing.tokens(yard.placements(run_id)[0])) - sum(pieces))

    assert max(pieces) <= 128
    cluster.away = False
    yard.until(lambda: bool(cluster.launched))
    [order] = cluster.launched.values()
    assert len({*order.tokens}) == 300


def test_for_an_executor_that_is_away_little_is_prepared(yard: Yard) -> None:
    """ATK5-02: however many runs name it. When it is back, all of them get their turn."""
    cluster = yard.executor("hpc")
    cluster.away = True
    runs = [placed(yard, "hpc") for _ in range(MOST_INTENDED + 5)]
    yard.round(5)
    assert sum(len(yard.placements(run_id)) for run_id in runs) == MOST_INTENDED
    assert (
        yard.db.now_read(lambda tx: [one for one in tx.hosts.page(None, 100) if one.name[:4] == "run-"]) == []
    )

    cluster.away = False
    yard.until(lambda: cluster.launches == len(runs))


def test_a_submission_asks_an_executor_a_few_times_and_one_that_is_away_once(yard: Yard) -> None:
    """ATK5-01: whatever different needs a sweep has."""
    cluster = yard.executor("hpc")
    needs = [Requirements(executors=("hpc",), min_cores=cores) for cores in range(1, 101)]
    assert yard.db.do(yard.placer.refusals(*needs)) is None
    assert cluster.asked <= 16
    cluster.asked, cluster.away = 0, True
    assert yard.db.do(yard.placer.refusals(*needs)) is None
    assert cluster.asked == 1


def test_the_hosts_of_runs_that_have_ended_are_gone(yard: Yard) -> None:
    """ATK5-03: they would be counted as hosts for ever, until nobody saw those that can take runs."""
    yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round()
    [grant] = yard.worker(run_id, 0)
    yard.end(grant)
    yard.clock.advance(RUN_HOST_S + 1.0)

    yard.db.now_write(lambda tx: retire_run_hosts(tx, now=yard.clock.now(), limit=10))

    name = f"run-{run_id.removeprefix('r-')}-0"
    assert yard.db.now_read(lambda tx: tx.hosts.by_name(name)) is None
    assert yard.db.now_read(lambda tx: tx.tokens.of_run(run_id)) == []


@pytest.fixture
def hung(yard: Yard) -> Iterator[Cluster]:
    """An executor that never answers, asked in threads as a server does."""
    cluster = yard.executor("hung")
    cluster.answers = threading.Event()
    yard.placer.in_thread = yard.placer.ask = asyncio.to_thread
    yard.placer.round_s = 0.05
    yield cluster
    cluster.answers.set()


def test_an_executor_that_never_answers_keeps_no_other_from_launching(yard: Yard, hung: Cluster) -> None:
    """HOUR5-03: one dead Ray, and no run reached a healthy Slurm for minutes."""
    yard.executor("hpc")
    waits, goes = placed(yard, "hung"), placed(yard, "hpc")
    yard.until(lambda: [one.state for one in yard.placements(goes)] == [PlacementState.LAUNCHED])
    assert yard.placements(waits)[0].state is PlacementState.INTENDED

    later = placed(yard, "hpc")
    yard.until(lambda: [one.state for one in yard.placements(later)] == [PlacementState.LAUNCHED])


def test_who_submits_or_checks_does_not_wait_for_an_executor_that_never_answers(
    yard: Yard, hung: Cluster
) -> None:
    """HOUR5-01, HOUR5-02: both said that the server did not answer; the run was accepted all the same."""
    yard.placer.answer_s = 0.01
    need = Requirements(executors=("hung",))
    assert yard.db.do(yard.placer.refusals(need)) is None
    record = yard.db.now_read(lambda tx: executors.find(tx, "hung"))
    [check] = yard.db.do(yard.placer.preflight(record))
    assert not check.ok
    assert "hung did not answer within" in check.detail


def test_an_executor_whose_cluster_is_gone_for_good_can_be_forgotten(yard: Yard) -> None:
    """HOUR5-03: `rm --force` said "as soon as its workers are gone", and it was there for ever."""
    cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round()
    cluster.away = True

    def force(tx: Tx) -> None:
        for one in executors.remove(tx, "hpc", by=BY._replace(now=yard.clock.now()), force=True):
            lose(tx, one.id, Reason.PLACEMENT_LOST, "removed", now=yard.clock.now())

    yard.db.now_write(force)
    yard.until(lambda: yard.placements(run_id)[0].tries > 0)
    assert yard.db.now_read(lambda tx: tx.executors.get("hpc")) is not None

    yard.db.now_write(force)
    assert yard.db.now_read(lambda tx: tx.executors.get("hpc")) is None
    assert yard.placements(run_id)[0].state is PlacementState.CLOSED
    assert not any(
        token.holds(yard.clock.now()) for token in yard.db.now_read(lambda tx: tx.tokens.of_run(run_id))
    )


def test_workers_of_a_run_are_nothing_to_other_runs_and_go_with_it(yard: Yard) -> None:
    """HOUR5-04: each stayed in every list, for ever where its launch was refused; HOUR4-21: with its name."""
    cluster = yard.executor("hpc")
    served = placed(yard, "hpc")
    yard.round()
    [grant] = yard.worker(served, 0)
    yard.end(grant)
    cluster.refuses = "the partition is closed"
    refused = placed(yard, "hpc", ranks=2)
    yard.until(lambda: yard.run(refused).state is RunState.FAILED)
    hosts = yard.db.now_read(lambda tx: tx.hosts.of_runs())
    assert sorted(hosts.values()) == sorted([served, refused, refused])

    later = placed(yard, "hpc")
    asked = WhyQuestion(Requirements(), "default", "x", yard.run(later))
    seen = yard.db.now_read(
        lambda tx: standings(tx, asked, now=yard.clock.now(), policy=yard.policy, shapes=yard.board.shapes)
    )
    assert [one.host.id for one in seen if one.host.id in hosts] == []

    after = yard.clock.now() + RUN_HOST_S + MINUTE
    assert yard.db.now_write(lambda tx: retire_run_hosts(tx, now=after, limit=10)) == 3
    assert yard.db.now_read(lambda tx: tx.hosts.of_runs()) == {}
    names = yard.db.now_read(lambda tx: {host_name(tx, one) for one in hosts})
    assert names == {run_host_name(served, 0), run_host_name(refused, 0), run_host_name(refused, 1)}
