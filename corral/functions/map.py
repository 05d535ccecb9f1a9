"""One function over many inputs: sent in batches, collected as they end, at most a window of them at once."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from corral.functions.backend import CallStatus, EndpointTarget, OutgoingCall, backend
from corral.functions.calls import value_of
from corral.functions.interrupt import cancel_calls, interrupted, interrupted_making

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
    _stopped: bool = False
    # What is being sent, and has no ids yet.
    _sending: list[OutgoingCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A program that ends in the midst of it, as by Ctrl-C between two results, cancels the rest as well.
        weakref.finalize(self, cancel_calls, self._open)

    def stop(self) -> None:
        """From another thread: the results end, and what is under way is cancelled."""
        self._stopped = self._exhausted = True
        cancel_calls(under_way := list(self._open))
        for call_id in under_way:
            self._open.pop(call_id, None)

    def results(self, *, order: bool, return_exceptions: bool) -> Generator[Any, None, None]:
        try:
            for seen in self._in_order() if order else (seen for _, seen in self._ended()):
                yield self._value(seen, return_exceptions=return_exceptions)
        except KeyboardInterrupt:
            self._exhausted = True
            interrupted_making(self.target, self._sending)
            interrupted(list(self._open))
            self._open.clear()
            # Anew, without the frames of the wait.
            raise KeyboardInterrupt from None
        finally:
            # Nobody goes on with it: none of the others is needed.
            self._exhausted = True
            cancel_calls(self._open)
            self._open.clear()

    def _value(self, seen: CallStatus, *, return_exceptions: bool) -> Any:
        try:
            return value_of(seen, self.function, allow_pickle=self.allow_pickle)
        except Exception as error:
            if not return_exceptions:
                raise
            return error

    def _in_order(self) -> Iterator[CallStatus]:
        ready: dict[int, CallStatus] = {}
        next_up = 0
        for index, seen in self._ended():
            ready[index] = seen
            while next_up in ready:
                yield ready.pop(next_up)
                next_up += 1

    def _ended(self) -> Iterator[tuple[int, CallStatus]]:
        while True:
            yield from self._send()
            # What was sent while it was stopped is among those that are cancelled at the end.
            if not self._open or self._stopped:
                return
            # One request asks for a thousand at most; the oldest are the likeliest to have ended.
            ids = list(islice(self._open, 1000))
            for seen in backend().collect(ids, _WAIT_S):
                if (index := self._open.pop(seen.id, None)) is not None:
                    yield index, seen

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
            for place, seen in enumerate(self._made(batch)):
                if seen.ended:
                    yield first + place, seen
                else:
                    self._open[seen.id] = first + place
            if len(batch) < BATCH:
                return

    def _made(self, batch: list[OutgoingCall]) -> list[CallStatus]:
        self._sending = batch
        made = backend().make(self.target, batch, wait_s=0)
        # An earlier run of the same map was interrupted, and cancelled them: they have no result yet.
        while cancelled := [place for place, seen in enumerate(made) if seen.state == "cancelled"]:
            self._sending = [
                replace(batch[place], key=f"{self.name}:again:{made[place].id}") for place in cancelled
            ]
            again = backend().make(self.target, self._sending, wait_s=0)
            for place, seen in zip(cancelled, again, strict=True):
                made[place] = seen
        self._sending = []
        return made
