"""Where the ranks of a gang go, what is kept for one that waits, and what a run file may say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from support.queue_of_hosts import QueueOfHosts

from corral.core.queue.grants import Grant
from corral.core.queue.rooms import rooms_in_database
from corral.core.queue.why import WhyQuestion, standings
from corral.core.queue.why_gang import gang_notes, gang_summary
from corral.domain.errors import InvalidInput
from corral.domain.ids import RunId
from corral.domain.runs.reasons import Reason
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunFile, RunSpec

# Hosts, and the wall limits of what runs there.
WALLS = {"first": 500.0, "later": 1000.0, "last": 5000.0}


@pytest.fixture
def yard() -> Iterator[QueueOfHosts]:
    made = QueueOfHosts()
    yield made
    made.db.end()


def poll(yard: QueueOfHosts, *hosts: str, most: int = 8) -> list[Grant]:
    return [grant for host in hosts for grant in yard.claim(host, max_leases=most)]


def busy(yard: QueueOfHosts, host: str, *, wall_s: float | None = None, count: int = 1) -> list[Grant]:
    """Runs of one GPU that only this host can have."""
    for _ in range(count):
        yard.submit(gpus=1, wall_s=wall_s, needs={"hosts": (host,)}, name="busy")
    return poll(yard, host)


def why(yard: QueueOfHosts, run_id: RunId) -> str | None:
    run, now = yard.run(run_id), yard.clock.now()

    def unit(tx: Any) -> str | None:
        asked = WhyQuestion(yard.board.shapes.get(tx, run.shape), run.project, run.name, run)
        found = standings(tx, asked, now=now, policy=yard.policy, shapes=yard.board.shapes)
        return gang_summary(tx, yard.board, run, found)

    return yard.db.now_read(unit)


def test_a_gang_goes_to_the_smallest_host_that_holds_all_of_it(yard: QueueOfHosts) -> None:
    for name, slots in (("large", 8), ("small", 3), ("tiny", 2)):
        yard.host(name, slots=slots)
        poll(yard, name)
    yard.submit(ranks=3)
    assert poll(yard, "large") == []
    grants = poll(yard, "small")
    assert [grant.lease.rank for grant in grants] == [0, 1, 2]
    assert [(g.place.local_rank, g.place.local_world_size) for g in grants if g.place] == [
        (0, 3),
        (1, 3),
        (2, 3),
    ]
    assert {grant.place.master_addr for grant in grants if grant.place} == {"127.0.0.1"}


def test_over_several_hosts_rank_0s_host_is_told_by_its_address(yard: QueueOfHosts) -> None:
    yard.host("one", gpus=2, address="10.0.0.1")
    yard.host("two", gpus=1, address="10.0.0.2")
    yard.submit(gpus=1, ranks=3)
    assert poll(yard, "one") == []
    grants = poll(yard, "two", "one")
    assert Counter(grant.lease.host_id for grant in grants) == {
        yard.hosts["one"].id: 2,
        yard.hosts["two"].id: 1,
    }
    assert {grant.place.master_addr for grant in grants if grant.place} == {"10.0.0.1"}
    by_rank = {grant.lease.rank: grant.place for grant in grants}
    assert [place.local_rank for _, place in sorted(by_rank.items()) if place] == [0, 1, 0]
    assert [place.local_gpus for _, place in sorted(by_rank.items()) if place] == [(0, 1), (0, 1), (0,)]


def test_a_worker_from_before_there_were_ranks_gets_none(yard: QueueOfHosts) -> None:
    """Not even beside others that could, and `why` says so."""
    yard.host("new", gpus=2)
    yard.host("old", gpus=4, address=None)
    yard.submit(gpus=1, ranks=2)
    assert poll(yard, "old") == []
    assert len(poll(yard, "new")) == 2
    with pytest.raises(InvalidInput, match="the host's is older") as refused:
        yard.submit(gpus=1, ranks=3)
    assert "new holds 2, old holds 0" in refused.value.message


def test_a_gang_that_waits_keeps_no_run_of_one_rank_from_its_host(yard: QueueOfHosts) -> None:
    yard.host("one", gpus=2)
    yard.host("two", gpus=2)
    held = busy(yard, "two", count=2)
    gang = yard.submit(gpus=1, ranks=4)
    alone = yard.submit(gpus=1)
    assert [grant.run.id for grant in poll(yard, "one")] == [alone]
    assert yard.run(gang).state == "queued"
    said = why(yard, gang)
    assert said is not None
    assert said.startswith("queued: 1 of the 4 ranks that start together have room now (1 on one)")
    assert said.endswith("it waits for 3 more")
    assert len(held) == 2


def test_hosts_are_kept_for_a_gang_that_has_been_next_for_long(yard: QueueOfHosts) -> None:
    """Only as many as it needs: those that are free first. What ends in time passes, the rest waits."""
    for name in ("one", "two", "three"):
        yard.host(name, gpus=1)
    soon = busy(yard, "two", wall_s=200)
    busy(yard, "three", wall_s=5000)
    gang = yard.submit(gpus=1, ranks=2)
    assert poll(yard, "one") == []
    yard.clock.advance(yard.policy.reserve_after_s + 1)
    long = yard.submit(gpus=1, wall_s=1000)
    quick = yard.submit(gpus=1, wall_s=50)
    (passed,) = poll(yard, "one")
    assert passed.run.id == quick
    now, waiting = yard.clock.now(), yard.run(gang)
    kept = yard.board.reservations.hosts_of(gang)
    assert set(kept) == {yard.hosts["one"].id, yard.hosts["two"].id}
    notes = yard.db.now_read(lambda tx: gang_notes(tx, yard.board, waiting, now=now, policy=yard.policy))
    assert "kept for it" in notes[0]
    yard.end(passed)
    assert poll(yard, "one") == []
    yard.end(soon[0])
    assert sorted(grant.lease.rank for grant in poll(yard, "two", "one")) == [0, 1]
    assert yard.board.reservations.hosts_of(gang) == ()
    assert yard.run(long).state == "queued"


def test_what_becomes_free_early_is_kept_for_a_gang_that_waits(yard: QueueOfHosts) -> None:
    """Runs end long before their wall limits: whichever host has room first counts, not the one chosen."""
    running = {name: busy(yard, yard.host(name, gpus=1), wall_s=wall_s)[0] for name, wall_s in WALLS.items()}
    gang = yard.submit(gpus=1, ranks=2)
    yard.clock.advance(yard.policy.reserve_after_s)
    yard.submit(gpus=1, wall_s=9000)
    yard.end(running["last"])
    assert poll(yard, "last") == []
    first, last = yard.hosts["first"].id, yard.hosts["last"].id
    assert set(yard.board.reservations.hosts_of(gang)) == {first, last}
    yard.end(running["later"])
    assert [grant.run.id for grant in poll(yard, "later", "last")] == [gang] * 2


def test_a_gang_that_was_behind_another_does_not_wait_anew(yard: QueueOfHosts) -> None:
    """It has grown old meanwhile: hosts are kept for it as soon as it is next."""
    running = {name: busy(yard, yard.host(name, gpus=1), wall_s=wall_s)[0] for name, wall_s in WALLS.items()}
    first, second = yard.submit(gpus=1, ranks=2), yard.submit(gpus=1, ranks=2)
    yard.clock.advance(yard.policy.reserve_after_s)
    for name in ("first", "later"):
        yard.end(running[name])
        poll(yard, name)
    assert yard.run(first).state == "running"
    yard.submit(gpus=1, wall_s=9000)
    yard.end(running["last"])
    assert poll(yard, "last") == []
    assert yard.hosts["last"].id in yard.board.reservations.hosts_of(second)


def test_hosts_are_kept_for_the_first_gang_and_not_for_those_behind_it(yard: QueueOfHosts) -> None:
    for name, wall_s in {**WALLS, "much later": 6000.0}.items():
        busy(yard, yard.host(name, gpus=1), wall_s=wall_s)
    yard.host("free", gpus=1)
    first, second = yard.submit(gpus=1, ranks=3), yard.submit(gpus=1, ranks=2)
    poll(yard, "free")
    yard.clock.advance(yard.policy.reserve_after_s)
    for _ in range(2):
        poll(yard, "free")
    assert len(yard.board.reservations.hosts_of(first)) == 3
    assert yard.board.reservations.hosts_of(second) == ()


def test_hosts_are_not_kept_for_ever(yard: QueueOfHosts) -> None:
    yard.host("one", gpus=1)
    yard.host("two", gpus=1)
    busy(yard, "two")
    gang = yard.submit(gpus=1, ranks=2)
    poll(yard, "one")
    yard.clock.advance(yard.policy.reserve_after_s + 1)
    other = yard.submit(gpus=1)
    assert poll(yard, "one") == []
    assert len(yard.board.reservations.hosts_of(gang)) == 2
    yard.clock.advance(yard.policy.keep_for_gang_s + 1)
    assert [grant.run.id for grant in poll(yard, "one")] == [other]


def test_a_gang_counts_with_all_its_ranks_against_the_quota(yard: QueueOfHosts) -> None:
    yard.host("box", gpus=4)
    yard.quota("alpha", max_gpus=3)
    gang = yard.submit(gpus=1, ranks=4)
    assert poll(yard, "box") == []
    assert yard.run(gang).state == "queued"
    yard.quota("alpha", max_gpus=4)
    assert len(poll(yard, "box")) == 4


def filled(yard: QueueOfHosts, host: str, *, preemptible: bool) -> list[Grant]:
    for _ in range(2):
        yard.submit(gpus=1, preemptible=preemptible, needs={"hosts": (host,)}, name="filler")
    return poll(yard, host)


def test_room_is_made_for_a_gang_on_all_hosts_at_once(yard: QueueOfHosts) -> None:
    """As few yield as must; the hosts are kept until all have, and then the gang starts."""
    for name in ("one", "two"):
        yard.host(name, gpus=2)
    running = [*filled(yard, "one", preemptible=True), *filled(yard, "two", preemptible=True)]
    gang = yard.submit(gpus=1, ranks=3, priority=5)
    yard.clock.advance(yard.policy.preempt_after_s + 1)
    (plan,) = yard.preempt()
    assert len(plan.victims) == 3
    other = yard.submit(gpus=1)
    asked = [grant for grant in running if grant.run.id in plan.victims]
    for grant in asked[:2]:
        yard.end(grant, "stopped", Reason.YIELDED)
        assert poll(yard, "one", "two") == []
    yard.end(asked[2], "stopped", Reason.YIELDED)
    started = poll(yard, "one", "two", "one")
    assert [grant.run.id for grant in started] == [gang] * 3
    assert yard.run(other).state == "queued"


def test_nobody_is_asked_to_yield_to_a_gang_that_would_not_fit_all_the_same(yard: QueueOfHosts) -> None:
    for name in ("one", "two"):
        yard.host(name, gpus=2)
    filled(yard, "one", preemptible=True)
    filled(yard, "two", preemptible=False)
    yard.submit(gpus=1, ranks=3, priority=5)
    yard.clock.advance(yard.policy.preempt_after_s + 1)
    assert yard.preempt() == []


def test_hosts_that_wait_at_another_server_count_too(yard: QueueOfHosts) -> None:
    yard.host("here", gpus=1)
    yard.host("elsewhere", gpus=1)
    poll(yard, "elsewhere")
    yard.board.rooms.gone(yard.hosts["elsewhere"].id)
    yard.submit(gpus=1, ranks=2)
    assert poll(yard, "here") == []
    now, away_s = yard.clock.now(), yard.policy.away_s
    yard.board.rooms.learn(yard.db.now_read(lambda tx: rooms_in_database(tx, now, away_s)))
    assert len(poll(yard, "here", "elsewhere")) == 2


def test_an_elastic_run_starts_with_what_there_is_and_grows(yard: QueueOfHosts) -> None:
    yard.host("one", gpus=2)
    gang = yard.submit(gpus=1, ranks=2, most_ranks=4)
    assert [grant.lease.rank for grant in poll(yard, "one")] == [0, 1]
    yard.host("two", gpus=4)
    yard.grow()
    assert [grant.lease.rank for grant in poll(yard, "two")] == [2, 3]
    assert yard.run(gang).state == "running"
    yard.grow()
    assert poll(yard, "two") == []


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        (0, "a run has 1 to 4096 ranks"),
        (-1, "a run has 1 to 4096 ranks"),
        (5000, "a run has 1 to 4096 ranks"),
        ({"min": 3, "max": 2}, "min = 3, which is more than max = 2"),
        ({"min": 3}, "needs both"),
        ({"min": 0, "max": 2}, "greater than or equal to 1"),
        ("4", "must be a number, or"),
        (True, "must be a number, or"),
    ],
)
def test_what_replicas_may_not_be_is_told(replicas: object, said: str) -> None:
    """HOUR5-17: of a wrong type it said "must be a table"; a number is the usual form."""
    with pytest.raises(ValidationError) as refused:
        RunFile.model_validate({"argv": ["true"], "replicas": replicas})
    (error,) = refused.value.errors()
    assert said in error["msg"]
    assert error["loc"][0] == "replicas"


@pytest.mark.parametrize(
    ("also", "where"),
    [
        ({"resources": {"prefer": "cuda"}}, "replicas"),
        ({"model": "corral/tiny", "train": {"recipe": "sft", "data": "x"}, "argv": []}, "diloco"),
    ],
)
def test_ranks_must_be_alike(also: dict[str, object], where: str) -> None:
    """A `[train]` table takes several ranks only with `[diloco]`."""
    with pytest.raises(ValidationError) as refused:
        RunFile.model_validate({"argv": ["true"], "replicas": 2, **also})
    assert [error["loc"][0] for error in refused.value.errors()] == [where]


def test_a_run_of_one_rank_is_the_run_that_it_was() -> None:
    one, two = RunSpec(argv=["true"]), RunSpec.model_validate({"argv": ["true"], "replicas": 2})
    assert identity_of(one) == identity_of(RunSpec.model_validate({"argv": ["true"], "replicas": 1}))
    assert identity_of(one) != identity_of(two)
    assert (two.requirements().ranks, two.requirements().most_ranks) == (2, 2)
