"""A queued run wakes one worker that could take it, and the next only while something is left."""

from __future__ import annotations

from support.memory_database import MemoryDatabase

from corral.core.queue.eligibility import Shapes
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.lanes import Lanes
from corral.core.queue.long_polls import LongPoll, LongPolls
from corral.core.runs.shapes import put_shape
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import Digest, HostId, LeaseId, new_host_id, new_run_id
from corral.domain.runs.queue import Lane, LeaseHolding, ReadyRun

SHAPE = Digest("0" * 64)


def waiting(count: int) -> tuple[LongPolls, list[LongPoll]]:
    waiters, made = LongPolls(Shapes()), [LongPoll() for _ in range(count)]
    for waiter in made:
        waiters.join(waiter)
    return waiters, made


def woken(made: list[LongPoll]) -> list[int]:
    return [index for index, waiter in enumerate(made) if waiter.woken.is_set()]


def test_one_run_wakes_one_waiter_the_one_that_waits_longest() -> None:
    waiters, made = waiting(3)
    waiters.ready(SHAPE)
    assert woken(made) == [0]


def test_two_runs_wake_two() -> None:
    waiters, made = waiting(3)
    waiters.ready(SHAPE)
    waiters.ready(SHAPE)
    assert woken(made) == [0, 1]


def test_a_baton_goes_round_once_and_is_dropped() -> None:
    waiters, made = waiting(2)
    waiters.ready(SHAPE)
    for waiter in made:
        waiters.pass_on(waiter)
        waiters.join(waiter)
    assert woken(made) == []


def test_closing_wakes_all() -> None:
    waiters, made = waiting(2)
    waiters.close()
    assert woken(made) == [0, 1]


def test_a_shape_may_have_runs_until_its_lanes_are_known_to_be_empty() -> None:
    lanes, lane = Lanes(), Lane(SHAPE, 0, "default")
    assert not lanes.may_have(SHAPE)
    lanes.reconcile([lane])
    assert lanes.may_have(SHAPE)
    lanes.heard(lane, ReadyRun(1.0, new_run_id()))
    assert lanes.may_have(SHAPE)


def test_a_host_whose_gpus_are_all_taken_is_not_woken_for_a_run_that_needs_one() -> None:
    """It could not take it, and asks anew once it has one free."""
    database, shapes = MemoryDatabase(), Shapes()
    capability = canonical({"os": "linux", "arch": "x86_64", "gpus": [{"index": 0, "name": "A100"}]})
    hosts = [
        Host(new_host_id(), name, capability, f"digest of {name}", 4, None, False, None, 0.0)
        for name in ("busy", "free")
    ]
    need = Requirements(gpus=1)
    shape = database.now_write(lambda tx: put_shape(tx, need))
    database.now_read(lambda tx: [shapes.fits(tx, shape, host) for host in hosts])
    waiters, made = LongPolls(shapes), [LongPoll(), LongPoll()]
    taken = [LeaseHolding(LeaseId("l-one"), "claim-one", "[0]")]
    for waiter, host, held in zip(made, hosts, (taken, []), strict=True):
        waiters.join(waiter)
        waiters.saw(waiter, host, HostCapacity(host, held))
    waiters.ready(shape)
    assert woken(made) == [1]
    waiters.saw(made[0], hosts[0], HostCapacity(hosts[0], []))
    waiters.ready(shape)
    assert woken(made) == [0, 1]
    database.end()


def test_what_one_poll_of_a_host_saw_counts_for_another_that_waits() -> None:
    """HOUR4-13: a worker that has more free than its waiting claim knows of looks beside it; a run that needs
    all of it wakes the claim that waits."""
    database, shapes = MemoryDatabase(), Shapes()
    capability = canonical({"os": "linux", "arch": "x86_64", "gpus": [{"index": 0, "name": "A100"}]})
    host = Host(new_host_id(), "box", capability, "digest", 4, None, False, None, 0.0)
    shape = database.now_write(lambda tx: put_shape(tx, Requirements(gpus=1)))
    database.now_read(lambda tx: shapes.fits(tx, shape, host))
    polls, waits, beside = LongPolls(shapes), LongPoll(host.id), LongPoll(host.id)
    polls.join(waits)
    polls.saw(waits, host, HostCapacity(host, [LeaseHolding(LeaseId("l-one"), "claim-one", "[0]")]))
    polls.ready(shape)
    assert woken([waits]) == []
    polls.join(beside)
    polls.saw(beside, host, HostCapacity(host, []))
    polls.ended(beside)
    polls.ready(shape)
    assert woken([waits]) == [0]
    database.end()


def test_a_shape_whose_only_lane_does_not_count_has_nothing() -> None:
    lanes = Lanes()
    lanes.heard(Lane(SHAPE, 0, "at-its-limit"), ReadyRun(1.0, new_run_id()))
    lanes.reconcile([Lane(SHAPE, 0, "at-its-limit")])
    assert not lanes.may_have(SHAPE, lambda lane: lane.project != "at-its-limit")
    lanes.reconcile([Lane(SHAPE, 0, "other")])
    assert lanes.may_have(SHAPE, lambda lane: lane.project != "at-its-limit")


OTHER = Digest("1" * 64)


def fleet_of(count: int, free: int) -> tuple[LongPolls, list[LongPoll], Digest, MemoryDatabase]:
    """So many hosts with one GPU each; only the last `free` have it left."""
    database, shapes = MemoryDatabase(), Shapes()
    capability = canonical({"os": "linux", "arch": "x86_64", "gpus": [{"index": 0, "name": "A100"}]})
    shape = database.now_write(lambda tx: put_shape(tx, Requirements(gpus=1)))
    waiters, made = LongPolls(shapes), [LongPoll() for _ in range(count)]
    for index, waiter in enumerate(made):
        host = Host(new_host_id(), f"host-{index}", capability, "digest", 4, None, False, None, 0.0)
        database.now_read(lambda tx, host=host: shapes.fits(tx, shape, host))  # type: ignore[misc]
        held = [] if index >= count - free else [LeaseHolding(LeaseId("l-one"), "claim-one", "[0]")]
        waiters.join(waiter)
        waiters.saw(waiter, host, HostCapacity(host, held))
    return waiters, made, shape, database


def test_whom_a_run_does_not_fit_is_asked_once_and_not_for_every_run() -> None:
    """A run that becomes ready costs the same however many busy hosts wait."""
    waiters, made, shape, database = fleet_of(2_000, 100)
    asked = 0
    may_take = waiters._may_take

    def count(waiter: LongPoll, shape: Digest) -> bool:
        nonlocal asked
        asked += 1
        return may_take(waiter, shape)

    waiters._may_take = count  # type: ignore[method-assign]
    for _ in range(100):
        waiters.ready(shape)
    assert woken(made) == list(range(1_900, 2_000))
    assert asked <= 2_100
    database.end()


def test_whoever_looks_again_is_asked_again_wherever_it_stood() -> None:
    """Places are closed up as waiters come and go, and what is known of the others stays right."""
    waiters, made, shape, database = fleet_of(200, 0)
    waiters.ready(shape)
    assert woken(made) == []
    for waiter in made[:150]:
        waiters.leave(waiter)
    for _ in range(3):
        for waiter in made[150:199]:
            assert waiter.host is not None
            waiters.saw(waiter, waiter.host, waiter.free)
    assert len(waiters) == 50
    last = made[160]
    assert last.host is not None
    waiters.saw(last, last.host, HostCapacity(last.host, []))
    waiters.ready(shape)
    assert woken(made) == [160]
    database.end()


def test_who_is_woken_for_what_is_gone_waits_on_unless_something_else_found_nobody() -> None:
    waiters, made = waiting(1)
    waiters.ready(SHAPE)
    assert waiters.wait_on(made[0])
    assert woken(made) == []
    assert len(waiters) == 1
    waiters.ready(SHAPE)
    waiters.ready(OTHER)
    assert not waiters.wait_on(made[0])
    assert woken(made) == [0]


def test_a_poll_that_looks_just_now_hears_of_what_its_host_was_assigned() -> None:
    """Its look may have come before the assignment; nothing is known of its host before it has looked."""
    polls, poll = LongPolls(Shapes()), LongPoll(HostId("h-one"))
    polls.join(poll)
    polls.changed(HostId("h-two"))
    assert not poll.woken.is_set()
    polls.changed(HostId("h-one"))
    polls.saw(poll, None, None)
    assert poll.woken.is_set()
    polls.ended(poll)
    polls.changed(HostId("h-one"))
