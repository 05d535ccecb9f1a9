"""A queued run wakes one worker that could take it, and the next only while something is left."""

from __future__ import annotations

from corral.core.lanes import Lanes
from corral.core.shapes import Shapes
from corral.domain.ids import Digest, new_run_id
from corral.ports.store import Lane, Ready
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
