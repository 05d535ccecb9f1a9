"""The calls of one instance, without a server, an instance or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from corral.wire.calls import AssignedCall, OutcomeBody
from corral.wire.payloads import PayloadBody
from corral.worker.instance.calls import (
    CLEAR_UP_S,
    GATHER_S,
    LOOK_S,
    NEXT_REQUEST_S,
    SHORT_S,
    STALE_S,
    InstanceCall,
    InstanceCalls,
)

ARGS = PayloadBody(format="json", body="e30=", size=2)


def assigned(n: int, *, attempt: int = 1, timeout_s: float | None = None) -> AssignedCall:
    return AssignedCall(id=call_id(n), function="f", attempt=attempt, args=ARGS, timeout_s=timeout_s)


def call_id(n: int) -> str:
    return "c-" + "".join("bcdfghjkmn"[int(digit)] for digit in f"{n:012d}")


def ready(capacity: int = 1) -> InstanceCalls:
    calls = InstanceCalls(capacity)
    calls.is_ready = True
    return calls


def bring(calls: InstanceCalls, n: int, now: float = 0.0, **about: Any) -> InstanceCall:
    """The call, taken, its arguments here, and begun if there is room."""
    call = calls.take(assigned(n, **about), now)
    assert call is not None
    assert calls.queue(call)
    calls.begin(now)
    return call


def outcomes(calls: InstanceCalls, now: float = 0.0) -> list[OutcomeBody]:
    return calls.request(now).outcomes


def made_short(calls: InstanceCalls) -> None:
    """One call was done in a millisecond."""
    bring(calls, 99)
    calls.settle(call_id(99), 0.0, ran_s=0.001, cancelled=True)
    calls.answered(calls.request(0.0), 0)


def test_an_instance_that_is_not_ready_asks_for_nothing() -> None:
    calls = InstanceCalls(3)
    assert calls.wanted(0.0) == 0
    calls.is_ready = True
    assert calls.wanted(0.0) == 3
    calls.is_closing = True
    assert calls.wanted(0.0) == 0


def test_calls_begin_in_their_order_as_soon_as_there_is_room() -> None:
    calls = ready(2)
    first, second, third = (bring(calls, n, 1.0) for n in range(3))
    assert [call.began_at for call in (first, second, third)] == [1.0, 1.0, None]

    assert calls.settle(first.id, 2.0, cancelled=True)
    assert calls.begin(2.0) == [third]
    assert third.began_at == 2.0


def test_calls_whose_length_is_not_known_are_not_fetched_ahead() -> None:
    calls = ready()
    bring(calls, 1)
    assert calls.room(0.0) == 0
    assert calls.wanted(0.0) == 0


def test_short_calls_are_fetched_ahead_unless_the_first_takes_longer() -> None:
    calls = ready()
    made_short(calls)
    assert calls.wanted(0.0) == calls.room(0.0) == 1 + 50

    bring(calls, 1)
    # The next request goes with the outcome of this call, which is a moment away.
    assert calls.room(0.0) == 50
    assert calls.wanted(0.0) == 0

    # This one is longer than the others were: nothing more may wait behind it.
    assert calls.room(3 * SHORT_S) == 0


def test_short_calls_are_asked_for_at_once_while_the_server_gives_all_that_is_wanted() -> None:
    calls = ready()
    made_short(calls)
    request = calls.request(0.0, want=calls.wanted(0.0))
    calls.answered(request, given=request.want)
    bring(calls, 1)
    assert calls.wanted(0.0) == 50

    request = calls.request(0.0, want=50)
    calls.answered(request, given=3)
    assert calls.wanted(0.0) == 0


def test_an_outcome_is_told_once_and_again_if_its_request_failed() -> None:
    calls = ready()
    bring(calls, 1)
    calls.settle(call_id(1), 5.0, ran_s=5.0, cancelled=True)
    request = calls.request(5.0)
    assert [(one.call_id, one.ran_s) for one in request.outcomes] == [(call_id(1), 5.0)]
    assert outcomes(calls) == []

    calls.unanswered(request, 6.0)
    assert [one.call_id for one in outcomes(calls)] == [call_id(1)]


def test_a_call_whose_outcome_is_in_flight_is_still_said_to_be_held() -> None:
    calls = ready()
    bring(calls, 1)
    calls.settle(call_id(1), 0.0, cancelled=True)
    first = calls.request(0.0)
    assert first.holding == []
    assert calls.request(0.0).holding == [call_id(1)]
    calls.answered(first, 0)
    assert calls.request(0.0).holding == []


def test_what_is_settled_twice_is_told_once() -> None:
    calls = ready()
    bring(calls, 1)
    assert calls.settle(call_id(1), 0.0, cancelled=True)
    assert not calls.settle(call_id(1), 0.0, cancelled=True)
    assert len(outcomes(calls)) == 1


def test_a_call_that_is_known_is_not_taken_twice_and_its_next_attempt_is_given_back() -> None:
    calls = ready()
    bring(calls, 1)
    assert calls.take(assigned(1), 0.0) is None
    assert outcomes(calls) == []

    assert calls.take(assigned(1, attempt=2), 0.0) is None
    assert [(one.attempt, one.gave_back) for one in outcomes(calls)] == [(2, True)]


def test_a_call_that_was_cancelled_while_its_arguments_were_brought_does_not_begin() -> None:
    calls = ready()
    call = calls.take(assigned(1), 0.0)
    assert call is not None
    assert calls.cancel(call.id, 1.0) is call
    assert calls.settle(call.id, 1.0, cancelled=True)
    assert not calls.queue(call)
    assert calls.begin(1.0) == []
    assert not calls.end_by_force(1.0 + CLEAR_UP_S)


def test_a_call_that_runs_too_long_is_told_to_end_once_and_fails_with_a_timeout() -> None:
    calls = ready()
    bring(calls, 1, 1.0, timeout_s=2.0)
    assert calls.overdue(2.9) == []
    assert [call.id for call in calls.overdue(3.0)] == [call_id(1)]
    assert calls.overdue(3.1) == []

    error = calls.ending(call_id(1))["error"]
    assert error["type"] == "CallTimeout"
    assert error["message"] == "f() ran longer than its timeout of 2 s"


def test_a_call_that_is_cancelled_is_told_to_end_once_and_is_no_timeout() -> None:
    calls = ready()
    call = bring(calls, 1, timeout_s=2.0)
    assert calls.cancel(call.id, 1.0) is call
    assert calls.cancel(call.id, 1.0) is None
    assert calls.overdue(5.0) == []
    assert calls.ending(call.id) == {"cancelled": True}


def test_a_call_that_does_not_end_takes_its_process_along_and_the_others_are_given_back() -> None:
    calls = ready(2)
    for n in (1, 2, 3):
        bring(calls, n)
    calls.cancel(call_id(1), 1.0)
    assert not calls.end_by_force(1.0 + CLEAR_UP_S / 2)
    assert calls.is_idle is False

    assert calls.end_by_force(1.0 + CLEAR_UP_S)

    told = [(one.call_id, one.cancelled, one.gave_back) for one in outcomes(calls)]
    assert told == [(call_id(1), True, False), (call_id(2), False, True), (call_id(3), False, True)]
    assert calls.is_idle


def test_calls_that_waited_too_long_are_given_back() -> None:
    calls = ready()
    bring(calls, 1)
    bring(calls, 2)
    calls.give_back_stale(STALE_S / 2)
    assert outcomes(calls) == []

    calls.give_back_stale(STALE_S)
    assert [(one.call_id, one.gave_back) for one in outcomes(calls)] == [(call_id(2), True)]
    assert calls.request(1.0).holding[0] == call_id(1)


def test_an_instance_that_stops_gives_back_what_it_has_not_begun() -> None:
    calls = ready()
    bring(calls, 1)
    bring(calls, 2)
    assert calls.stop(1.0)
    assert not calls.stop(1.0)
    assert [one.call_id for one in outcomes(calls)] == [call_id(2)]
    assert calls.takes_no_more
    assert not calls.is_idle


def test_chunks_of_a_call_travel_together_and_are_counted_in_its_outcome() -> None:
    calls = ready()
    bring(calls, 1)
    for n in range(1, 251):
        calls.add_chunk(call_id(1), n, ARGS, 0.0)
    calls.add_chunk(call_id(7), 1, ARGS, 0.0)
    calls.settle(call_id(1), 0.0, result=ARGS)
    request = calls.request(0.0)
    assert [(one.first, len(one.chunks)) for one in request.chunks] == [(1, 200), (201, 50)]
    assert request.outcomes[0].chunks == 250


def test_news_are_told_at_once_unless_the_next_request_or_the_next_call_is_near() -> None:
    calls = ready(2)
    assert calls.tell_in_s(0.0, 0.0) == LOOK_S
    bring(calls, 1)
    calls.is_asking = True
    calls.settle(call_id(1), 1.0, cancelled=True)
    assert calls.tell_in_s(0.0, 1.0) == 0.0

    # The next request for calls takes it along, if it comes soon.
    calls.is_asking = False
    assert calls.tell_in_s(0.0, 1.0) == pytest.approx(NEXT_REQUEST_S)
    assert calls.tell_in_s(0.0, 1.0 + NEXT_REQUEST_S) == 0.0

    calls.is_asking = True
    for n in (2, 3, 4):
        bring(calls, n, 1.0)
    assert calls.tell_in_s(0.0, 1.0) == pytest.approx(GATHER_S)


def test_a_busy_instance_looks_now_and_then_for_calls_to_be_cancelled() -> None:
    calls = ready()
    bring(calls, 1)
    assert calls.tell_in_s(0.0, LOOK_S / 2) == LOOK_S
    assert calls.tell_in_s(0.0, LOOK_S) == 0.0
    calls.is_asking = True
    assert calls.tell_in_s(0.0, LOOK_S) == LOOK_S


def test_a_message_names_the_file_of_large_arguments() -> None:
    call = InstanceCall(assigned(1), 0.0)
    said = {"t": "call", "id": call_id(1), "attempt": 1, "function": "f", "format": "json", "reads": None}
    assert call.message() == said
    call.path = "/calls/a"
    assert call.message() == {**said, "path": "/calls/a"}
