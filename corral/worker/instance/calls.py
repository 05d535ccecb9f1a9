"""The calls of one instance as a state machine: no I/O, no threads, no clock; every `now` is given.

A call waits for its turn, runs, and is settled with an outcome. Outcomes and chunks are kept until a request
has brought them to the server.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from corral.wire.calls import MOST_CALLS, AssignedCall, ChunksBody, LeaseCallsRequest, OutcomeBody
from corral.wire.payloads import PayloadBody

# A busy instance hears this soon that one of its calls was cancelled.
LOOK_S = 0.5
# Short calls are fetched ahead of their turn: this much work, and this many calls at most.
AHEAD_S = 0.05
MOST_AHEAD = 64
# The outcome of a shorter call travels with the next request for calls.
SHORT_S = 0.005
# How long an outcome waits for that request before it is sent on its own.
NEXT_REQUEST_S = 0.05
# A call that has waited here for so long is given back, so that another instance can take it.
STALE_S = 0.25
# Outcomes are gathered for so long while more calls wait for their turn.
GATHER_S = 0.01
# A call that is told to end has so long to clear up before its process is killed.
CLEAR_UP_S = 1.0
_CHUNKS_IN_ONE = 200


@dataclass(eq=False)
class InstanceCall:
    """A call that the server assigned to this instance; `began_at` is when the instance was given it."""

    assigned: AssignedCall
    came_at: float
    # Its arguments: in memory, or in a file at this path.
    body: bytes = b""
    path: str | None = None
    began_at: float | None = None
    times_out_at: float | None = None
    told_to_end_at: float | None = None
    chunks: int = 0

    @property
    def id(self) -> str:
        return self.assigned.id

    def message(self) -> dict[str, Any]:
        """As the instance is given it."""
        assigned = self.assigned
        told = {
            "t": "call",
            "id": assigned.id,
            "attempt": assigned.attempt,
            "function": assigned.function,
            "format": assigned.args.format,
            "reads": assigned.reads,
        }
        return told if self.path is None else {**told, "path": self.path}

    def ending(self) -> dict[str, Any]:
        """How a call that was told to end is settled: it ran out of time, or somebody cancelled it."""
        if self.told_to_end_at is None or self.times_out_at is None:
            return {"cancelled": True}
        assigned = self.assigned
        error = {
            "type": "CallTimeout",
            "message": f"{assigned.function}() ran longer than its timeout of {assigned.timeout_s:g} s",
            "bases": ["CallTimeout", "TimeoutError", "builtins.TimeoutError"],
        }
        return {"error": error}


class InstanceCalls:
    """`capacity` calls run at a time; `is_ready` once the instance has loaded its code."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # In the order in which they came, which is the order in which they begin.
        self._calls: dict[str, InstanceCall] = {}
        # Those of them whose turn has not come.
        self._waiting: deque[InstanceCall] = deque()
        self._outcomes: list[OutcomeBody] = []
        self._chunks: list[ChunksBody] = []
        # Calls whose outcome a request is bringing to the server at this moment.
        self._in_flight: set[str] = set()
        self._news_at: float | None = None
        # How long a call takes here of late, and whether the last request was given all that it asked for.
        self._pace_s: float | None = None
        self._more_is_queued = False
        self.is_ready = False
        # A request for calls is under way.
        self.is_asking = False
        # No request is made before a call has ended.
        self.is_full = False
        # The run is to stop: no more calls are asked for.
        self.is_closing = False
        # The calls that are here are finished, and then the instance ends.
        self.is_stopping = False
        self.is_gone = False

    @property
    def is_idle(self) -> bool:
        return not self._calls

    @property
    def running(self) -> int:
        """How many have begun."""
        return len(self._calls) - len(self._waiting)

    @property
    def has_news(self) -> bool:
        return bool(self._outcomes or self._chunks)

    @property
    def takes_no_more(self) -> bool:
        return self.is_gone or self.is_stopping

    # What the server says.

    def take(self, assigned: AssignedCall, now: float) -> InstanceCall | None:
        """A call that is new here. Its arguments are brought next, then `queue` it."""
        known = self._calls.get(assigned.id)
        if known is None:
            call = self._calls[assigned.id] = InstanceCall(assigned, now)
            return call
        if known.assigned.attempt != assigned.attempt:
            # The attempt before is still being ended here; another instance may have this one.
            self._give_back_call(assigned, now)
        return None

    def queue(self, call: InstanceCall) -> bool:
        """Its arguments are here; False if it was settled meanwhile."""
        if self._calls.get(call.id) is not call:
            return False
        self._waiting.append(call)
        return True

    def begin(self, now: float) -> list[InstanceCall]:
        """The calls whose turn it is now, since the instance has room."""
        begun = []
        while self._waiting and self.running < self._capacity:
            call = self._waiting.popleft()
            call.began_at = now
            timeout_s = call.assigned.timeout_s
            call.times_out_at = None if timeout_s is None else now + timeout_s
            begun.append(call)
        return begun

    def cancel(self, call_id: str, now: float) -> InstanceCall | None:
        """The call, if it is here and was not told to end before."""
        call = self._calls.get(call_id)
        if call is None or call.told_to_end_at is not None:
            return None
        call.told_to_end_at, call.times_out_at = now, None
        return call

    def answered(self, request: LeaseCallsRequest, given: int) -> None:
        """The server has what the request told it, and gave so many calls."""
        self._in_flight.difference_update(one.call_id for one in request.outcomes)
        if request.want:
            self._more_is_queued = given == request.want

    def unanswered(self, request: LeaseCallsRequest, now: float) -> None:
        """What could not be told is told with the next request: nothing is lost while the worker lives."""
        self._in_flight.difference_update(one.call_id for one in request.outcomes)
        self._outcomes = [*request.outcomes, *self._outcomes]
        self._chunks = [*request.chunks, *self._chunks]
        if self.has_news:
            self._news_at = now

    # What the instance says.

    def settle(self, call_id: str, now: float, *, ran_s: float = 0.0, **how: Any) -> bool:
        """`how` are the fields of its outcome. False if the call is not here any more."""
        call = self._calls.pop(call_id, None)
        if call is None:
            return False
        if call in self._waiting:
            self._waiting.remove(call)
        self._pace_s = ran_s if self._pace_s is None else 0.8 * self._pace_s + 0.2 * ran_s
        self._tell(
            OutcomeBody(
                call_id=call_id, attempt=call.assigned.attempt, ran_s=ran_s, chunks=call.chunks, **how
            ),
            now,
        )
        return True

    def ending(self, call_id: str) -> dict[str, Any]:
        """How a call is settled that the instance says it has ended before its time."""
        call = self._calls.get(call_id)
        return {"cancelled": True} if call is None else call.ending()

    def add_chunk(self, call_id: str, n: int, payload: PayloadBody, now: float) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        call.chunks = n
        last = self._chunks[-1] if self._chunks else None
        if last is not None and last.call_id == call_id and len(last.chunks) < _CHUNKS_IN_ONE:
            self._chunks[-1] = last.model_copy(update={"chunks": [*last.chunks, payload]})
        else:
            attempt = call.assigned.attempt
            self._chunks.append(ChunksBody(call_id=call_id, attempt=attempt, first=n, chunks=[payload]))
        self._news_at = self._news_at or now

    # What is asked of the server, and when.

    def wanted(self, now: float) -> int:
        """How many calls to ask for now; 0 means not to ask."""
        room = self.room(now)
        if not self.is_ready or self.is_closing or room <= 0:
            return 0
        if not self._calls or not self._are_short() or self._first_runs_longer_than(2 * SHORT_S, now):
            return room
        return room if self._more_is_queued and len(self._calls) <= room else 0

    def room(self, now: float) -> int:
        return self._capacity + self._reach(now) - len(self._calls)

    def request(self, now: float, *, want: int = 0, wait_s: float = 0.0) -> LeaseCallsRequest:
        """Takes along what there is to tell."""
        outcomes, self._outcomes = self._outcomes[:MOST_CALLS], self._outcomes[MOST_CALLS:]
        chunks, self._chunks = self._chunks[:MOST_CALLS], self._chunks[MOST_CALLS:]
        self._news_at = now if self.has_news else None
        # A call whose outcome is in flight is not lost, though this request may overtake that one.
        holding = [*self._calls, *self._in_flight]
        self._in_flight.update(one.call_id for one in outcomes)
        return LeaseCallsRequest(outcomes=outcomes, chunks=chunks, holding=holding, want=want, wait_s=wait_s)

    def tell_in_s(self, looked_at: float, now: float) -> float:
        """When to send what there is to tell, or to look for calls to be cancelled; 0 is now."""
        if self._news_at is None:
            must_look = bool(self._calls) and not self.is_asking and now - looked_at >= LOOK_S
            return 0.0 if must_look else LOOK_S
        after_s = GATHER_S if self._waiting else 0.0
        if not self.is_asking and not self.is_stopping and self.wanted(now):
            after_s = NEXT_REQUEST_S
        left_s = self._news_at + after_s - now
        return max(0.001, left_s) if left_s > 0 else 0.0

    def _reach(self, now: float) -> int:
        """How many calls may wait here for their turn: none where that could be long."""
        if self._pace_s is None or self._first_runs_longer_than(2 * SHORT_S, now):
            return 0
        return min(MOST_AHEAD, int(AHEAD_S / max(self._pace_s, 1e-6)))

    def _are_short(self) -> bool:
        return self._pace_s is not None and self._pace_s < SHORT_S

    def _first_runs_longer_than(self, seconds: float, now: float) -> bool:
        first = next(iter(self._calls.values()), None)
        return first is not None and first.began_at is not None and now - first.began_at > seconds

    # Limits, and the end.

    def overdue(self, now: float) -> list[InstanceCall]:
        """Calls whose time is over, each once; they are to be told to end."""
        found = [
            call
            for call in self._calls.values()
            if call.told_to_end_at is None and call.times_out_at is not None and now >= call.times_out_at
        ]
        for call in found:
            call.told_to_end_at = now
        return found

    def give_back_stale(self, now: float) -> None:
        if self._waiting and now - self._waiting[0].came_at >= STALE_S:
            self._give_back_waiting(now)

    def stop(self, now: float) -> bool:
        """Finish what runs and give the rest back; False if it was told to before."""
        if self.is_stopping:
            return False
        self.is_stopping = True
        self._give_back_waiting(now)
        return True

    def end_by_force(self, now: float) -> bool:
        """Settle everything, if a call did not end when it was told to; then its process must be killed.

        The other calls are given back at no cost.
        """
        stuck = [
            call
            for call in self._calls.values()
            if call.told_to_end_at is not None and now - call.told_to_end_at >= CLEAR_UP_S
        ]
        if not stuck:
            return False
        for call in stuck:
            ran_s = 0.0 if call.began_at is None else now - call.began_at
            self.settle(call.id, now, ran_s=ran_s, **call.ending())
        for other in self._calls.values():
            self._give_back_call(other.assigned, now)
        self._calls.clear()
        self._waiting.clear()
        return True

    def _give_back_waiting(self, now: float) -> None:
        for call in self._waiting:
            del self._calls[call.id]
            self._give_back_call(call.assigned, now)
        self._waiting.clear()

    def _give_back_call(self, assigned: AssignedCall, now: float) -> None:
        """Not begun, and at no cost."""
        self._tell(OutcomeBody(call_id=assigned.id, attempt=assigned.attempt, gave_back=True), now)

    def _tell(self, outcome: OutcomeBody, now: float) -> None:
        self._outcomes.append(outcome)
        self._news_at = self._news_at or now
