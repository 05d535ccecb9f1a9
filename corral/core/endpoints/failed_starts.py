"""Instances that ended before they were ready: how often in a row, why, and when the next is tried."""

from __future__ import annotations

from dataclasses import dataclass

from corral.domain.calls import CallPool
from corral.domain.ids import EndpointId
from corral.ports.clock import Clock

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class FailedStart:
    """`times` in a row, last because of `why`; `next_at` is monotonic."""

    times: int
    why: str
    next_at: float


class FailedStarts:
    """By endpoint, version and pool. In memory: a server that starts anew tries anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[CallPool, FailedStart] = {}

    def failed(self, place: CallPool, why: str) -> int:
        """How often in a row by now. The next try waits twice as long as the one before."""
        before = self._failed.get(place)
        times = 1 if before is None else before.times + 1
        # 2 ** 10 pauses are longer than the longest.
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(times - 1, 10))
        self._failed[place] = FailedStart(times, why, self._clock.monotonic() + pause_s)
        return times

    def last(self, place: CallPool) -> FailedStart | None:
        return self._failed.get(place)

    def may_try(self, place: CallPool) -> bool:
        found = self._failed.get(place)
        return found is None or self._clock.monotonic() >= found.next_at

    def try_at_once(self, place: CallPool) -> None:
        """Nobody waits for it now: whoever calls next hears soon whether it starts."""
        if (found := self._failed.get(place)) is not None:
            self._failed[place] = FailedStart(found.times, found.why, self._clock.monotonic())

    def started(self, place: CallPool) -> None:
        self._failed.pop(place, None)

    def forget(self, endpoint_id: EndpointId) -> None:
        for place in [one for one in self._failed if one.endpoint_id == endpoint_id]:
            del self._failed[place]
