"""Which hosts have room now: what each had left when its claim last looked. Hints, which a claim checks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from corral.core.queue.free_capacity import HostCapacity
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId
from corral.store.transaction import Tx

_HOSTS = 10_000


class Room(NamedTuple):
    """`most` is how many more leases the host's worker asked for, and `asked_at` when it did."""

    host: Host
    free: HostCapacity
    most: int
    at: float
    asked_at: float = 0.0

    def places(self, need: Requirements, most: int) -> int:
        """For how many ranks there is room, up to `most`."""
        return self.free.places(need, min(most, self.most))


class Rooms:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._rooms: dict[HostId, Room] = {}
        # By how many slots are free; to sort ten thousand for each gang would take longer than all the rest.
        self._by_slots: dict[int, dict[HostId, Room]] = {}
        self._lock = threading.Lock()

    def last_ask(self, host_id: HostId, most: int, asked_at: float) -> tuple[int, float]:
        """What the host's worker asked for last, and when, for a claim that asked for `most`.

        A claim that waits may be out of date: its worker has asked again when more became free.
        """
        with self._lock:
            known = self._rooms.get(host_id)
        if known is None or known.asked_at <= asked_at:
            return most, asked_at
        return known.most, known.asked_at

    def saw(self, room: Room) -> None:
        """A claim has looked."""
        with self._lock:
            self._put(room)

    def learn(self, rooms: Iterable[Room]) -> None:
        """Of hosts whose claims wait at another server, by what the database says."""
        with self._lock:
            for room in rooms:
                mine = self._rooms.get(room.host.id)
                if mine is None or mine.at < room.at:
                    self._put(room)

    def gone(self, host_id: HostId) -> None:
        """Until its worker asks again, nothing is known of it."""
        with self._lock:
            self._drop(host_id)

    def _put(self, room: Room) -> None:
        self._drop(room.host.id)
        if room.most > 0 and room.free.slots > 0:
            self._rooms[room.host.id] = room
            self._by_slots.setdefault(room.free.slots, {})[room.host.id] = room

    def _drop(self, host_id: HostId) -> None:
        if (old := self._rooms.pop(host_id, None)) is not None:
            self._by_slots[old.free.slots].pop(host_id, None)

    def has(self, host_id: HostId) -> bool:
        """Whether the host seems to have room for anything."""
        return host_id in self._rooms

    def all(self, now: float, keep_s: float) -> list[Room]:
        """Of hosts that asked within `keep_s`; those with the fewest free slots first."""
        with self._lock:
            return [
                room
                for _, alike in sorted(self._by_slots.items())
                for room in alike.values()
                if now - room.at <= keep_s
            ]


def rooms_in_database(tx: Tx, now: float, away_s: float) -> list[Room]:
    """Of every host that is here, what its leases leave of it."""
    held = tx.leases.held_by_host()
    found = []
    for host in tx.hosts.page(None, _HOSTS):
        if host.last_seen_at is not None and host.takes_work(now) and not host.is_away(now, away_s):
            free = HostCapacity(host, held[host.id])
            if free.slots > 0:
                found.append(Room(host, free, free.slots, host.last_seen_at))
    return found
