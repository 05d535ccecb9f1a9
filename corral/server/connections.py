"""Connections on which the server waits for a request: how long each may, and how many an address has."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Protocol


class OpenConnection(Protocol):
    # Who is on the other side: an address, or a network that counts as one.
    origin: str

    def hang_up(self) -> None:
        """End it now, whatever is still to be sent."""
        ...


class WaitingConnections:
    """A connection waits here until the head of its next request is whole, from the moment it is taken on.

    A caller with a good token does not wait here between two requests: many hosts behind one address keep
    their connections. All others are hung up after `head_s`, and the one that has waited longest makes room
    where its address has more than `most_per_origin`: who sends a request at once is not hurt by those who
    send none.
    """

    def __init__(self, *, head_s: float, most_per_origin: int) -> None:
        self._head_s = head_s
        self._most_per_origin = most_per_origin
        # Both in the order in which they began to wait.
        self._since: dict[OpenConnection, float] = {}
        self._by_origin: dict[str, dict[OpenConnection, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: OpenConnection, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, unless it waits already."""
        if connection in self._since:
            return
        self._since[connection] = loop.time()
        same = self._by_origin.setdefault(connection.origin, {})
        same[connection] = None
        if len(same) > self._most_per_origin:
            self._hang_up(next(iter(same)))
        if self._timer is None:
            self._timer = loop.call_later(self._head_s, self._sweep, loop)

    def discard(self, connection: OpenConnection) -> None:
        if self._since.pop(connection, None) is None:
            return
        same = self._by_origin[connection.origin]
        del same[connection]
        if not same:
            del self._by_origin[connection.origin]

    def make_room(self, count: int) -> bool:
        """Hang up those that have waited longest, of whatever address; False if none waits."""
        longest = list(islice(self._since, count))
        for connection in longest:
            self._hang_up(connection)
        return bool(longest)

    def _hang_up(self, connection: OpenConnection) -> None:
        self.discard(connection)
        connection.hang_up()

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._since:
            first, since = next(iter(self._since.items()))
            if (left_s := since + self._head_s - now) > 0:
                self._timer = loop.call_later(left_s, self._sweep, loop)
                return
            self._hang_up(first)
