"""Bodies of requests that are under way: how long each may rest, and how slow it may be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from corral.server.connections import OpenConnection

# The least rate is that of a whole minute: a short pause is none of a slow sender.
WINDOW_S = 60.0


class BodySender(OpenConnection, Protocol):
    # Of the body that is under way.
    body_bytes: int

    def is_awaited(self) -> bool:
        """Whether the server waits for more of it, and not the sender for the server."""
        ...

    def is_known(self) -> bool:
        """Whether its request has a good token."""
        ...


@dataclass
class _Progress:
    began_at: float
    moved_at: float
    seen_bytes: int
    window_at: float
    window_bytes: int


class ComingBodies:
    """Hangs up who keeps the server waiting for a body.

    That is who sends nothing for `idle_s`, who sends less than `least_rate` bytes a second over `window_s`,
    and who has no token and is not done after `stranger_s`. They are looked at now and then: a body that
    comes whole with its head costs nothing.
    """

    def __init__(
        self, *, idle_s: float, least_rate: float, stranger_s: float, window_s: float = WINDOW_S
    ) -> None:
        self._idle_s = idle_s
        self._least_rate = least_rate
        self._stranger_s = stranger_s
        self._window_s = window_s
        self._look_s = min(idle_s, stranger_s, window_s) / 4
        self._coming: dict[BodySender, _Progress] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._coming)

    def add(self, sender: BodySender, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, unless it is here already."""
        if sender in self._coming:
            return
        self._coming[sender] = _new_progress(sender, loop.time())
        if self._timer is None:
            self._timer = loop.call_later(self._look_s, self._look, loop)

    def discard(self, sender: BodySender) -> None:
        self._coming.pop(sender, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for sender, progress in list(self._coming.items()):
            if self._is_over(sender, progress, now):
                self.discard(sender)
                sender.hang_up()
        self._timer = loop.call_later(self._look_s, self._look, loop) if self._coming else None

    def _is_over(self, sender: BodySender, progress: _Progress, now: float) -> bool:
        if not sender.is_awaited():
            # Its time counts from when it is its turn again; that of a stranger does not begin anew.
            self._coming[sender] = _new_progress(sender, now, began_at=progress.began_at)
            return False
        if sender.body_bytes != progress.seen_bytes:
            progress.moved_at, progress.seen_bytes = now, sender.body_bytes
        if now - progress.moved_at >= self._idle_s:
            return True
        if not sender.is_known() and now - progress.began_at >= self._stranger_s:
            return True
        window_s = now - progress.window_at
        if window_s < self._window_s:
            return False
        is_slow = sender.body_bytes - progress.window_bytes < window_s * self._least_rate
        progress.window_at, progress.window_bytes = now, sender.body_bytes
        return is_slow


def _new_progress(sender: BodySender, now: float, began_at: float | None = None) -> _Progress:
    began_at = now if began_at is None else began_at
    return _Progress(began_at, now, sender.body_bytes, now, sender.body_bytes)
