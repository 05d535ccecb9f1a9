"""Who is woken for a call."""

from __future__ import annotations

from support.clock import JumpingClock, ManualClock

from corral.core.calls.dispatch import Dispatcher, InstancePoll
from corral.core.endpoints.failed_starts import FailedStarts
from corral.domain.calls import CallPool, QueuedCall
from corral.domain.ids import CallId, EndpointId, LeaseId, RunId

POOLS = (CallPool(EndpointId("e-1"), 1, ""), CallPool(EndpointId("e-1"), 0, ""))


def a_poll(name: str) -> InstancePoll:
    return InstancePoll(LeaseId(name), POOLS)


def push(dispatch: Dispatcher, pool: CallPool, call: str) -> bool:
    return dispatch.queue(pool, QueuedCall(0, 0.0, CallId(call)))


def test_a_poll_that_joins_again_and_leaves_is_gone() -> None:
    """It was left behind once for each call, and woken in place of one that waits."""
    dispatch = Dispatcher(JumpingClock())
    gone, waits = a_poll("l-gone"), a_poll("l-waits")
    dispatch.join(gone)
    assert push(dispatch, POOLS[0], "c-1")
    dispatch.join(gone)
    dispatch.leave(gone)
    dispatch.join(waits)

    assert push(dispatch, POOLS[1], "c-2")

    assert waits.woken.is_set()
    assert not gone.woken.is_set()
    dispatch.leave(waits)
    assert not push(dispatch, POOLS[1], "c-3"), "nobody waits any more"


def test_those_who_wait_are_woken_in_turn_one_for_each_call() -> None:
    dispatch = Dispatcher(JumpingClock())
    polls = [a_poll(f"l-{n}") for n in range(3)]
    for poll in polls:
        dispatch.join(poll)

    for n in range(2):
        assert push(dispatch, POOLS[0], f"c-{n}")

    assert [poll.woken.is_set() for poll in polls] == [True, True, False]


def test_each_failed_start_is_followed_by_a_longer_pause() -> None:
    """FNX-03."""
    clock = ManualClock()
    starts, place = FailedStarts(clock), POOLS[0]
    pauses = []
    for times in range(1, 12):
        assert starts.may_try(place)
        assert starts.failed(place, "RuntimeError: no") == times
        before = clock.monotonic()
        while not starts.may_try(place):
            clock.advance(0.5)
        pauses.append(clock.monotonic() - before)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    starts.started(place)
    assert starts.last(place) is None


def test_an_instance_that_asks_and_gets_nothing_stays_idle() -> None:
    """HOUR3-01: every poll began the idle time again, so that one of a minute never ended."""
    clock = ManualClock()
    dispatch, lease_id, run_id = Dispatcher(clock), LeaseId("l-1"), RunId("r-1")
    dispatch.assign(lease_id, run_id, [CallId("c-1")], written=True)
    dispatch.settled(lease_id, [CallId("c-1")])

    for _ in range(3):
        assert not dispatch.is_idle(lease_id, 60.0)
        clock.advance(20.0)
        dispatch.keep(lease_id, run_id, [])
        dispatch.assign(lease_id, run_id, [], written=True)

    assert dispatch.is_idle(lease_id, 60.0)
    dispatch.keep(lease_id, run_id, [CallId("c-2")])
    dispatch.settled(lease_id, [CallId("c-2")])
    assert not dispatch.is_idle(lease_id, 60.0), "one that it kept counts"
