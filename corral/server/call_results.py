"""Who waits for the end of which call. What ended a moment ago is remembered, and not read again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from corral.domain.calls import CallRecord
from corral.domain.ids import CallId

KEEP_BYTES = 16 << 20
KEEP_CALLS = 10_000


@dataclass(eq=False)
class CallWatch:
    """`ended` are records; of `touched` it is only known that something became of them."""

    ended: dict[CallId, CallRecord] = field(default_factory=dict)
    touched: set[CallId] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class CallResults:
    def __init__(self) -> None:
        self._watches: defaultdict[CallId, set[CallWatch]] = defaultdict(set)
        self._recent: OrderedDict[CallId, CallRecord] = OrderedDict()
        self._bytes = 0

    def ended(self, calls: Iterable[CallRecord]) -> None:
        """These have ended, here, and that is durable."""
        for call in calls:
            self._forget(call.id)
            self._recent[call.id] = call
            self._bytes += call.result_bytes
            for watch in self._watches.get(call.id, ()):
                watch.ended[call.id] = call
                watch.news.set()
        while self._recent and (self._bytes > KEEP_BYTES or len(self._recent) > KEEP_CALLS):
            self._forget(next(iter(self._recent)))

    def touched(self, call_id: CallId) -> None:
        """Something became of it, perhaps on another server."""
        for watch in self._watches.get(call_id, ()):
            if call_id not in watch.ended:
                watch.touched.add(call_id)
                watch.news.set()

    def again(self, call_id: CallId) -> None:
        """It was queued once more."""
        self._forget(call_id)

    def recent(self, ids: Collection[CallId]) -> list[CallRecord]:
        return [call for call_id in ids if (call := self._recent.get(call_id)) is not None]

    def close(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.news.set()

    @contextmanager
    def watch(self, ids: Collection[CallId]) -> Iterator[CallWatch]:
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

    def _forget(self, call_id: CallId) -> None:
        old = self._recent.pop(call_id, None)
        if old is not None:
            self._bytes -= old.result_bytes
