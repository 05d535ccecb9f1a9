"""The slot of an instance, which it lends to others while its calls wait for calls that they made."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Most calls within calls take less: for them no other work is asked for.
LEND_AFTER_S = 0.25


class LentSlot:
    """Without this, callers that fill all slots would wait for ever for calls that find no slot.

    A caller gives its slot back rather than being refused: that needs no knowledge of who waits for whom, and
    holds for a chain of any depth as for a thousand callers of one function. It uses no processor meanwhile,
    and when its answer comes, the host runs one process more than it has slots until one of them ends. What
    it has of GPUs it keeps, since its memory is there.

    `changed` is called whenever the slot is lent or taken back. Safe to use from several threads.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # When each wait that is under way began.
        self._waits: dict[int, float] = {}
        self.is_lent = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A call waits for one that it made."""
        number = next(self._numbers)
        with self._lock:
            self._waits[number] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._waits[number]
            self._set(False)

    def look(self, running: int, now: float) -> None:
        """Lend the slot if all of so many calls wait, and for long enough."""
        with self._lock:
            long = sum(now - began >= LEND_AFTER_S for began in self._waits.values())
        self._set(long > 0 and long >= running)

    def _set(self, is_lent: bool) -> None:
        if self.is_lent != is_lent:
            self.is_lent = is_lent
            self._changed()
