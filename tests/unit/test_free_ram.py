"""A run with `min_ram` goes only to a host where that much memory is free now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.queue_of_hosts import QueueOfHosts

from corral.core.queue.why import RunStanding, WhyQuestion, standings
from corral.domain.hosts.capability import RamNow, Requirements
from corral.domain.ids import RunId

GIB = 1 << 30
HOST = 64 * GIB
# A twentieth of the host goes up and down.
TOLERANCE = HOST // 20


@pytest.fixture
def yard() -> Iterator[QueueOfHosts]:
    made = QueueOfHosts()
    made.host("box", ram=HOST)
    yield made
    made.db.end()


def wants(yard: QueueOfHosts, ram: int, **more: int) -> RunId:
    return yard.submit(needs={"min_ram_bytes": ram, **more})


def standing(yard: QueueOfHosts, ram: int) -> RunStanding:
    asked = WhyQuestion(Requirements(min_ram_bytes=ram), "alpha", "train")
    now, board = yard.clock.now(), yard.board
    (found,) = yard.db.now_read(
        lambda tx: standings(tx, asked, now=now, policy=yard.policy, shapes=board.shapes, roster=board.roster)
    )
    return found


def test_memory_that_other_programs_use_is_not_given_away(yard: QueueOfHosts) -> None:
    """FL-C06: there is not free; `why` says how much is."""
    run = wants(yard, 32 * GIB)

    assert yard.claimed("box", ram=RamNow(20 * GIB)) == []

    found = standing(yard, 32 * GIB)
    assert (found.place, found.waits) == ("waits", ("needs 32 GiB RAM; 20 GiB are free now",))
    assert yard.claimed("box", ram=RamNow(33 * GIB)) == [run]


@pytest.mark.parametrize(("missing", "taken"), [(0, True), (TOLERANCE, True), (TOLERANCE + 1, False)])
def test_a_little_less_than_asked_for_will_do(yard: QueueOfHosts, missing: int, taken: bool) -> None:
    run = wants(yard, 32 * GIB)

    assert yard.claimed("box", ram=RamNow(32 * GIB - missing)) == ([run] if taken else [])


def test_what_one_claim_gives_away_is_not_given_twice(yard: QueueOfHosts) -> None:
    """The worker looked at its memory once, before both."""
    first, second = wants(yard, 16 * GIB), wants(yard, 16 * GIB)

    assert yard.claimed("box", max_leases=2, ram=RamNow(20 * GIB)) == [first]
    assert yard.claimed("box", ram=RamNow(20 * GIB)) == [second]


def test_without_a_word_from_the_worker_what_was_promised_counts_alone(yard: QueueOfHosts) -> None:
    """Workers of before do not say; nor does a run ask that has no `min_ram`."""
    run, modest = wants(yard, 60 * GIB), yard.submit()

    assert yard.claimed("box", ram=RamNow(0)) == [modest]
    assert yard.claimed("box") == [run]


def test_a_host_is_not_kept_for_a_run_whose_memory_other_programs_use(yard: QueueOfHosts) -> None:
    """A host that is kept takes nothing else, and no end of a run would free that memory."""
    others, ours = RamNow(20 * GIB, runs_bytes=0), RamNow(20 * GIB, runs_bytes=30 * GIB)
    wants(yard, 40 * GIB)
    for _ in range(3):
        yard.claim("box", ram=others)
        yard.clock.advance(yard.policy.reserve_after_s)
    assert yard.claimed("box", ram=others, max_leases=1) == []
    young = yard.submit()
    assert yard.claimed("box", ram=others) == [young]

    for _ in range(3):
        yard.claim("box", ram=ours)
        yard.clock.advance(yard.policy.reserve_after_s)
    yard.submit()
    assert yard.claimed("box", ram=ours) == []
