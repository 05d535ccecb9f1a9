"""Wakes whoever waits for a key: a stream that follows a run, a beat that waits for a stop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

# Woken when an endpoint may need another instance.
SCALE = "scale"


class Wakeups:
    def __init__(self) -> None:
        self.closing = False
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def close(self) -> None:
        """The server ends: nobody is to wait any longer."""
        self.closing = True
        for key in list(self._watchers):
            self.wake(key)

    def wake(self, key: str) -> None:
        for event in self._watchers.get(key, ()):
            event.set()

    @contextmanager
    def watch(self, key: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the key is woken, from the moment of entering on."""
        event = asyncio.Event()
        if self.closing:
            event.set()
        self._watchers[key].add(event)
        try:
            yield event
        finally:
            self._watchers[key].discard(event)
            if not self._watchers[key]:
                del self._watchers[key]


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait until it is set; False if the time was over first."""
    # Not `asyncio.wait_for`: in Python 3.11 it can swallow a cancellation.
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
