"""When a run that waits for room could begin, and which hosts are kept for a gang until then."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.lanes import Candidate
from corral.core.queue.reservations import Reservation
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, LeaseId
from corral.domain.runs.queue import LeaseHolding
from corral.store.transaction import Tx

# Hosts are chosen anew so often, as runs end and hosts come and go.
CHOOSE_AGAIN_S = 60.0
# So many hosts are looked at: first those with free slots, then those where a run ends first.
_CONSIDERED = 1000
_NEVER = float("inf")


class FreeSeat(NamedTuple):
    """From when on a host has room for one rank more; infinite where the runs there have no wall limit."""

    at: float
    host_id: HostId


def begins_at(
    tx: Tx, board: Board, host: Host, held: Sequence[LeaseHolding], kept: Reservation
) -> float | None:
    """When the run fits that the host is kept for, by the wall limits here; None if too few have one."""
    if kept.is_gangs:
        return kept.begins
    large = tx.runs.get(kept.run_id)
    if large is None:
        return None
    need = board.shapes.get(tx, large.shape)
    ends: dict[LeaseId, float] = {}
    for item in held:
        lease = tx.leases.get(item.lease_id)
        run = None if lease is None else tx.runs.get(lease.run_id)
        if lease is not None and run is not None and run.wall_limit_s is not None:
            ends[lease.id] = lease.granted_at + run.wall_limit_s - run.ran_s
    first = next(free_seats(host, held, ends, need, now=0.0), FreeSeat(_NEVER, host.id))
    return None if first.at == _NEVER else first.at


def free_seats(
    host: Host, held: Sequence[LeaseHolding], ends: Mapping[LeaseId, float], need: Requirements, *, now: float
) -> Iterator[FreeSeat]:
    """The host's seats for ranks of one gang, in the order in which its runs leave them."""
    left = sorted(held, key=lambda item: ends.get(item.lease_id, _NEVER))
    taken, at = 0, now
    while True:
        places = HostCapacity(host, left).places(need, need.most_ranks)
        yield from [FreeSeat(at, host.id)] * (places - taken)
        taken = max(taken, places)
        if not left or taken >= need.most_ranks:
            return
        at = max(at, ends.get(left.pop(0).lease_id, _NEVER))


def first_seats(seats: Iterable[Iterator[FreeSeat]], ranks: int) -> list[FreeSeat]:
    """The first so many of all hosts' seats; fewer if there are not that many."""
    return [seat for seat, _ in zip(heapq.merge(*seats), range(ranks), strict=False)]


@dataclass(frozen=True)
class WaitingGang:
    """A gang that is next and does not fit."""

    board: Board
    policy: ServerPolicy
    tx: Tx
    candidate: Candidate
    need: Requirements
    now: float

    def reserve(self) -> bool:
        """Keep hosts for it once it has been next for long. False if it has some: others may have theirs."""
        reservations, run_id = self.board.reservations, self.candidate.ready.id
        kept = reservations.of_run(run_id, self.now, self.policy.away_s)
        if kept is not None and self.now - kept.seen < CHOOSE_AGAIN_S:
            return False
        if kept is None and reservations.waited(run_id, self.now) < self.policy.reserve_after_s:
            return True
        seats = first_seats(self._seats(), self.need.ranks)
        if len(seats) < self.need.ranks:
            return False
        begins = None if seats[-1].at == _NEVER else max(self.now, seats[-1].at)
        since = self.now if kept is None else kept.since
        until = (since if begins is None else max(since, begins)) + self.policy.keep_for_gang_s
        hosts = list(dict.fromkeys(seat.host_id for seat in seats))
        priority = self.candidate.lane.priority
        made = Reservation(hosts[0], run_id, priority, since, self.now, until, begins)
        reservations.reserve_gang(hosts, made)
        return True

    def _seats(self) -> Iterator[Iterator[FreeSeat]]:
        held, ends = self.tx.leases.held_by_host(), self.tx.leases.ends()
        first: defaultdict[HostId, float] = defaultdict(lambda: _NEVER)
        for host_id, holdings in held.items():
            first[host_id] = min((ends.get(one.lease_id, _NEVER) for one in holdings), default=_NEVER)
        hosts = [host for host in self.board.roster.all(self.tx) if self._may_take(host)]
        hosts.sort(key=lambda host: (len(held[host.id]) >= host.slots, first[host.id], host.id))
        for host in hosts[:_CONSIDERED]:
            yield free_seats(host, held[host.id], ends, self.need, now=self.now)

    def _may_take(self, host: Host) -> bool:
        lane, shapes = self.candidate.lane, self.board.shapes
        kept = self.board.reservations.of_host(host.id, self.now, self.policy.away_s)
        return (
            (kept is None or kept.run_id == self.candidate.ready.id or kept.priority < lane.priority)
            and host.takes_work(self.now)
            and not host.is_away(self.now, self.policy.away_s)
            and shapes.fits(self.tx, lane.shape, host)
            and shapes.admits(self.tx, lane.shape, lane.project, host)
        )
