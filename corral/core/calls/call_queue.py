"""The calls of one pool that wait, in memory."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from corral.domain.calls import QueuedCall
from corral.domain.ids import CallId

# A queue is cleared of calls that have ended when it holds more of them than of others, and more than this.
_MOST_ENDED = 64


@dataclass
class CallQueue:
    """The first calls of a pool, in the order of service; `complete` if the database has no others.

    `known` are those that wait. The heap may also hold places of calls that have ended: they are skipped.
    """

    heap: list[QueuedCall] = field(default_factory=list)
    known: set[CallId] = field(default_factory=set)
    complete: bool = False

    @property
    def may_have_calls(self) -> bool:
        return bool(self.known) or not self.complete

    def push(self, place: QueuedCall) -> None:
        if place.id not in self.known:
            self.known.add(place.id)
            heapq.heappush(self.heap, place)

    def first(self) -> QueuedCall | None:
        while self.heap and self.heap[0].id not in self.known:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None

    def drop(self, call_id: CallId) -> None:
        """It does not wait any more."""
        self.known.discard(call_id)
        if len(self.heap) > 2 * len(self.known) + _MOST_ENDED:
            self.heap = [place for place in self.heap if place.id in self.known]
            heapq.heapify(self.heap)
