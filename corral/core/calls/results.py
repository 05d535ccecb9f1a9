"""Waiting for calls to end. Calls that ended a moment ago are remembered, and not read again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from corral.core.wakeups import wait_for
from corral.domain.calls import CALL_FINAL, CallRecord
from corral.domain.ids import CallId
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx

KEEP_BYTES = 16 << 20
KEEP_CALLS = 10_000
# How long ended calls are gathered into one answer, for each call that is waited for.
_GATHER_S = 0.00005


# So much of what the store has is read for one answer, and so many calls at a time.
_READ_BYTES = 4 << 20
_PORTION = 100


def _some_ended(tx: Tx, ids: Sequence[CallId]) -> list[CallRecord]:
    """Of the calls that have ended as many as one answer takes; the others are asked for again."""
    found: list[CallRecord] = []
    for at in range(0, len(ids), _PORTION):
        found += tx.calls.ended(ids[at : at + _PORTION])
        if sum(len(call.result or b"") for call in found) >= _READ_BYTES:
            break
    return found


@dataclass(eq=False)
class CallWatch:
    """`ended` are records; the calls in `changed` have to be read."""

    ended: dict[CallId, CallRecord] = field(default_factory=dict)
    changed: set[CallId] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class CallResults:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._closing = False
        self._watches: defaultdict[CallId, set[CallWatch]] = defaultdict(set)
        self._recent: OrderedDict[CallId, CallRecord] = OrderedDict()
        self._bytes = 0

    def ended(self, calls: Iterable[CallRecord]) -> None:
        """These ended here, and that is durable."""
        for call in calls:
            self.forget(call.id)
            self._recent[call.id] = call
            self._bytes += call.result_bytes
            for watch in self._watches.get(call.id, ()):
                watch.ended[call.id] = call
                watch.news.set()
        while self._recent and (self._bytes > KEEP_BYTES or len(self._recent) > KEEP_CALLS):
            self.forget(next(iter(self._recent)))

    def call_changed(self, call_id: CallId) -> None:
        """It may have ended, perhaps on another server."""
        for watch in self._watches.get(call_id, ()):
            if call_id not in watch.ended:
                watch.changed.add(call_id)
                watch.news.set()

    def forget(self, call_id: CallId) -> None:
        """It is queued again, or its result is deleted."""
        old = self._recent.pop(call_id, None)
        if old is not None:
            self._bytes -= old.result_bytes

    def close(self) -> None:
        """The server ends: nobody waits any longer."""
        self._closing = True
        for watches in self._watches.values():
            for watch in watches:
                watch.news.set()

    async def wait_all(self, calls: list[CallRecord], wait_s: float, *, fresh: bool) -> list[CallRecord]:
        """The calls as they are when all have ended, or when the time is over."""
        ended = {call.id: call for call in calls if call.state in CALL_FINAL}
        left = {call.id for call in calls} - set(ended)
        deadline = self._clock.monotonic() + wait_s
        while left and not self._closing:
            found = await self.wait_any(left, deadline - self._clock.monotonic(), fresh=fresh)
            if not found:
                break
            ended |= {call.id: call for call in found}
            left -= set(ended)
        return [ended.get(call.id, call) for call in calls]

    async def wait_any(self, ids: Collection[CallId], wait_s: float, *, fresh: bool) -> list[CallRecord]:
        """The calls that have ended, as soon as one has; none when the time is over.

        Fresh calls were accepted here a moment ago, so none of them can have ended unseen.
        """
        with self._watch(ids) as watch:
            if found := [call for one in ids if (call := self._recent.get(one)) is not None]:
                return found
            if not fresh and (found := await self._store.read(lambda tx: _some_ended(tx, list(ids)))):
                return found
            if wait_s <= 0 or self._closing or not await wait_for(watch.news, wait_s):
                return []
            if len(ids) > 1:
                await asyncio.sleep(_GATHER_S * len(ids))
            unread = list(watch.changed - set(watch.ended))
            found = await self._store.read(lambda tx: tx.calls.ended(unread)) if unread else []
            return [*watch.ended.values(), *found]

    @contextmanager
    def _watch(self, ids: Collection[CallId]) -> Iterator[CallWatch]:
        watch = CallWatch()
        for call_id in ids:
            self._watches[call_id].add(watch)
        try:
            yield watch
        finally:
            for call_id in ids:
                self._watches[call_id].discard(watch)
                if not self._watches[call_id]:
                    del self._watches[call_id]
