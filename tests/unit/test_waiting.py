"""A queued run wakes one worker that could take it, and the next only while something is left."""

from __future__ import annotations

from clockwork import Database

from corral.core.free import Free
from corral.core.lanes import Lanes
from corral.core.shapes import Shapes
from corral.core.submit import put_shape
from corral.domain.canonical import canonical
from corral.domain.capability import Requirements
from corral.domain.host import Host
from corral.domain.ids import Digest, LeaseId, new_host_id, new_run_id
from corral.ports.store import Held, Lane, Ready
from corral.server.waiting import Waiter, Waiters

SHAPE = Digest("0" * 64)


def waiting(count: int) -> tuple[Waiters, list[Waiter]]:
    waiters, made = Waiters(Shapes()), [Waiter() for _ in range(count)]
    for waiter in made:
        waiters.join(waiter)
    return waiters, made


def woken(made: list[Waiter]) -> list[int]:
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
    lanes.heard(lane, Ready(1.0, new_run_id()))
    assert lanes.may_have(SHAPE)


def test_a_host_whose_gpus_are_all_taken_is_not_woken_for_a_run_that_needs_one() -> None:
    """It could not take it, and asks anew once it has one free."""
    database, shapes = Database(), Shapes()
    capability = canonical({"os": "linux", "arch": "x86_64", "gpus": [{"index": 0, "name": "A100"}]})
    hosts = [
        Host(new_host_id(), name, capability, f"digest of {name}", 4, None, False, None, 0.0)
        for name in ("busy", "free")
    ]
    need = Requirements(gpus=1)
    shape = database.now_write(lambda tx: put_shape(tx, need))
    database.now_read(lambda tx: [shapes.fits(tx, shape, host) for host in hosts])
    waiters, made = Waiters(shapes), [Waiter(), Waiter()]
    taken = [Held(LeaseId("l-one"), "claim-one", "[0]")]
    for waiter, host, held in zip(made, hosts, (taken, []), strict=True):
        waiters.join(waiter)
        waiter.saw(host, Free(host, held))
    waiters.ready(shape)
    assert woken(made) == [1]
    made[0].saw(hosts[0], Free(hosts[0], []))
    waiters.ready(shape)
    assert woken(made) == [0, 1]
    database.end()


def test_a_shape_whose_only_lane_does_not_count_has_nothing() -> None:
    lanes = Lanes()
    lanes.heard(Lane(SHAPE, 0, "at-its-limit"), Ready(1.0, new_run_id()))
    lanes.reconcile([Lane(SHAPE, 0, "at-its-limit")])
    assert not lanes.may_have(SHAPE, lambda lane: lane.project != "at-its-limit")
    lanes.reconcile([Lane(SHAPE, 0, "other")])
    assert lanes.may_have(SHAPE, lambda lane: lane.project != "at-its-limit")
