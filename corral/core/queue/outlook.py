"""Which hosts will have room for a gang, and when, by the wall limits of what runs there."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.reservations import NEVER, FreeSeat
from corral.core.queue.roster import Roster
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import LeaseId
from corral.domain.runs.queue import LeaseHolding
from corral.store.transaction import Tx

# What is known of all hosts is read again after so long: of ten thousand that takes a quarter of a second.
READ_AGAIN_S = 5.0
# So many hosts are looked at: first those with free slots, then those where a run ends first.
_CONSIDERED = 1000


class ComingHost(NamedTuple):
    """A host will have no room for more before `after`."""

    after: float
    host: Host


class Outlook:
    """All hosts as of one moment: what they hold, and until when by its wall limits."""

    def __init__(self, tx: Tx, roster: Roster, now: float) -> None:
        self.at = now
        self._held, self.ends = tx.leases.held_by_host(), tx.leases.ends()
        coming = [ComingHost(self._first_end(host, now), host) for host in roster.all(tx)]
        self._coming = sorted(coming, key=lambda one: (one.after, one.host.id))

    def _first_end(self, host: Host, now: float) -> float:
        held = self._held[host.id]
        if len(held) < host.slots:
            return now
        return min((self.ends.get(one.lease_id, NEVER) for one in held), default=NEVER)

    def seats(self, need: Requirements, may_take: Callable[[Host], bool], now: float) -> Iterator[FreeSeat]:
        """Of all hosts that may take it, the first to come first."""
        numbers = itertools.count()
        open_hosts: list[tuple[FreeSeat, int, Iterator[FreeSeat]]] = []

        def look_at(seats: Iterator[FreeSeat]) -> None:
            if (first := next(seats, None)) is not None:
                heapq.heappush(open_hosts, (first, next(numbers), seats))

        allowed = (one for one in self._coming if may_take(one.host))
        for after, host in itertools.islice(allowed, _CONSIDERED):
            while open_hosts and open_hosts[0][0].at < after:
                seat, _, more = heapq.heappop(open_hosts)
                yield seat
                look_at(more)
            look_at(free_seats(host, self._held[host.id], self.ends, need, now=now))
        while open_hosts:
            seat, _, more = heapq.heappop(open_hosts)
            yield seat
            look_at(more)


class Outlooks:
    """The last one, for as long as it is good enough."""

    def __init__(self) -> None:
        self._last: Outlook | None = None

    def get(self, tx: Tx, roster: Roster, now: float) -> Outlook:
        last = self._last
        if last is None or not 0 <= now - last.at < READ_AGAIN_S:
            last = self._last = Outlook(tx, roster, now)
        return last


def free_seats(
    host: Host, held: Sequence[LeaseHolding], ends: Mapping[LeaseId, float], need: Requirements, *, now: float
) -> Iterator[FreeSeat]:
    """The host's seats for ranks of one gang, in the order in which its runs leave them."""
    left = sorted(held, key=lambda item: ends.get(item.lease_id, NEVER))
    taken, at = 0, now
    while True:
        places = HostCapacity(host, left).places(need, need.most_ranks)
        yield from [FreeSeat(at, host.id)] * (places - taken)
        taken = max(taken, places)
        if not left or taken >= need.most_ranks:
            return
        at = max(at, ends.get(left.pop(0).lease_id, NEVER))
