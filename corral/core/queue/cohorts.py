"""Seats for the ranks of a gang: all that must start together, or none."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.eligibility import policy_refusals
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.rooms import Room
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, RunId
from corral.domain.runs.queue import Lane
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

# Of hosts that could take the whole gang, so many are looked at for the one with the least room to spare.
_CONSIDERED = 64


def _slots(room: Room) -> int:
    return room.free.slots


def _most(room: Room) -> int:
    return min(room.most, room.free.slots)


class Seat(NamedTuple):
    """A place for one rank."""

    host: Host
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Cohort:
    """Looks for room over all hosts on behalf of the host that asks, `own`."""

    board: Board
    policy: ServerPolicy
    tx: Tx
    own: Room
    # Those of all hosts, the smallest first.
    rooms: Sequence[Room]
    now: float

    def fits(self, lane: Lane, run_id: RunId, need: Requirements) -> bool:
        """Whether there seems to be room for all that must start together."""
        left = need.ranks
        if len(self.rooms) < left and left > self.own.most + sum(map(_most, self.rooms)):
            return False
        for room in chain(self._own(need), self._others(reversed(self.rooms), lane, run_id)):
            left -= room.places(need, left)
            if left <= 0:
                return True
        return False

    def seats(self, lane: Lane, run: Run, need: Requirements, most: int) -> list[Seat]:
        """Under the locks of their hosts, in the order of the ranks; none if too few are to be had."""
        found: list[Seat] = []
        looked_at: set[HostId] = set()
        for room in self._order(lane, run.id, need, most):
            if room.host.id in looked_at:
                continue
            looked_at.add(room.host.id)
            found += self._take(room, run, need, most - len(found))
            if len(found) == most:
                break
        return found if len(found) >= need.ranks else []

    def _own(self, need: Requirements) -> list[Room]:
        return [self.own] if self.own.most > 0 and self.own.free.fits(need) else []

    def _others(self, rooms: Iterable[Room], lane: Lane, run_id: RunId) -> Iterator[Room]:
        """Those of other hosts that may take the run, one after the other: the first few may be enough."""
        for room in rooms:
            if room.host.id != self.own.host.id and self._may_take(room.host, lane, run_id):
                yield room

    def _may_take(self, host: Host, lane: Lane, run_id: RunId) -> bool:
        kept = self.board.reservations.of_host(host.id, self.now, self.policy.away_s)
        return (
            (kept is None or kept.run_id == run_id or kept.priority < lane.priority)
            and host.takes_work(self.now)
            and self.board.shapes.fits(self.tx, lane.shape, host)
            and self.board.shapes.admits(self.tx, lane.shape, lane.project, host)
            and self.board.roster.had(host, run_id, self.now) is None
        )

    def _order(self, lane: Lane, run_id: RunId, need: Requirements, most: int) -> Iterator[Room]:
        """The smallest room that holds all; or the largest first, so that ranks are on few hosts."""
        own = self._own(need)
        large = self.rooms[bisect_left(self.rooms, most, key=_slots) :]
        whole = sorted([*own, *islice(self._others(large, lane, run_id), _CONSIDERED)], key=_slots)
        alone = next((room for room in whole if room.places(need, most) == most), None)
        if alone is not None:
            yield alone
        others = self._others(reversed(self.rooms), lane, run_id)
        # No more of them than could be needed, and some to choose from.
        largest = [*own, *islice(others, min(_CONSIDERED, 2 * most))]
        yield from sorted(largest, key=lambda room: -room.places(need, most))
        yield from others

    def _take(self, room: Room, run: Run, need: Requirements, most: int) -> Iterator[Seat]:
        host, free = room.host, room.free
        if host.id != self.own.host.id:
            # Whoever waits for another's lock while it holds its own would wait in a circle.
            locked = self.tx.hosts.try_lock(host.id)
            if locked is None or not locked.takes_work(self.now) or policy_refusals(need, locked, run):
                return
            host = locked
            free = HostCapacity(host, self.tx.leases.held(host.id), self.board.roster.ram(host.id))
        for _ in range(free.places(need, min(most, room.most))):
            yield Seat(host, free.take(need, need.gpus))
