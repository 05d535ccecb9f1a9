"""Which hosts have room now: what each had left when its claim last looked. Hints, which a claim checks."""

from __future__ import annotations

import threading
from typing import NamedTuple

from corral.core.queue.free_capacity import HostCapacity
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId


class Room(NamedTuple):
    """`most` is how many more leases the host's worker has asked for."""

    host: Host
    free: HostCapacity
    most: int
    at: float

    def places(self, need: Requirements, most: int) -> int:
        """For how many ranks there is room, up to `most`."""
        return self.free.places(need, min(most, self.most))


class Rooms:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._rooms: dict[HostId, Room] = {}
        self._lock = threading.Lock()

    def saw(self, room: Room) -> None:
        with self._lock:
            if room.most > 0 and room.free.slots > 0:
                self._rooms[room.host.id] = room
            else:
                self._rooms.pop(room.host.id, None)

    def gone(self, host_id: HostId) -> None:
        """Until its worker asks again, nothing is known of it."""
        with self._lock:
            self._rooms.pop(host_id, None)

    def all(self, now: float, keep_s: float) -> list[Room]:
        """Of hosts that asked within `keep_s`; those with the fewest free slots first."""
        with self._lock:
            fresh = [room for room in self._rooms.values() if now - room.at <= keep_s]
        return sorted(fresh, key=lambda room: room.free.slots)
