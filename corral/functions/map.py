"""One function over many inputs: sent in batches, collected as they end, at most a window of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from corral.functions.backend import CallStatus, EndpointTarget, OutgoingCall, backend
from corral.functions.calls import value_of

BATCH = 250
_WAIT_S = 30.0


@dataclass
class RemoteMap:
    """Each input is keyed by the map's name and its place: a map that is run again repeats nothing."""

    target: EndpointTarget
    asks: Iterator[OutgoingCall]
    name: str
    function: str
    window: int
    allow_pickle: bool = False
    _sent: int = 0
    _open: dict[str, int] = field(default_factory=dict)
    _exhausted: bool = False

    def results(self, *, order: bool, return_exceptions: bool) -> Iterator[Any]:
        for seen in self._in_order() if order else (seen for _, seen in self._ended()):
            try:
                value = value_of(seen, self.function, allow_pickle=self.allow_pickle)
            except Exception as error:
                if not return_exceptions:
                    self._cancel_rest()
                    raise
                value = error
            yield value

    def _in_order(self) -> Iterator[CallStatus]:
        ready: dict[int, CallStatus] = {}
        next_up = 0
        for index, seen in self._ended():
            ready[index] = seen
            while next_up in ready:
                yield ready.pop(next_up)
                next_up += 1

    def _ended(self) -> Iterator[tuple[int, CallStatus]]:
        try:
            while True:
                yield from self._send()
                if not self._open:
                    return
                # One request asks for a thousand at most; the oldest are the likeliest to have ended.
                ids = list(islice(self._open, 1000))
                for seen in backend().collect(ids, _WAIT_S):
                    if (index := self._open.pop(seen.id, None)) is not None:
                        yield index, seen
        except GeneratorExit:
            self._cancel_rest()
            raise

    def _send(self) -> Iterator[tuple[int, CallStatus]]:
        """Fill the window. Calls that an earlier run of the same map made have ended already."""
        while not self._exhausted and len(self._open) < self.window:
            room = min(BATCH, self.window - len(self._open))
            batch = [
                replace(ask, key=f"{self.name}:{self._sent + place}")
                for place, ask in enumerate(islice(self.asks, room))
            ]
            if len(batch) < room:
                self._exhausted = True
            if not batch:
                return
            first, self._sent = self._sent, self._sent + len(batch)
            for place, seen in enumerate(backend().make(self.target, batch, wait_s=0)):
                if seen.ended:
                    yield first + place, seen
                else:
                    self._open[seen.id] = first + place
            if len(batch) < BATCH:
                return

    def _cancel_rest(self) -> None:
        self._exhausted = True
        for call_id in list(self._open):
            try:
                backend().cancel(call_id)
            except Exception:  # noqa: BLE001 - it ended meanwhile, or the server is away: it ends by itself
                continue
        self._open.clear()
