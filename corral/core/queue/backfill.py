"""When a run that waits for room could begin, and which hosts are kept for a gang until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.lanes import Candidate
from corral.core.queue.outlook import free_seats
from corral.core.queue.reservations import NEVER, FreeSeat, Reservation
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import LeaseId
from corral.domain.runs.queue import LeaseHolding
from corral.store.transaction import Tx

# Hosts are chosen anew so often, as runs end and hosts come and go.
CHOOSE_AGAIN_S = 60.0


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
    first = next(free_seats(host, held, ends, need, now=0.0), FreeSeat(NEVER, host.id))
    return None if first.at == NEVER else first.at


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
        """Keep hosts for it. Where nobody knows when it can begin, it must have been next for long.

        False if it has some.
        """
        reservations, run_id = self.board.reservations, self.candidate.ready.id
        kept = reservations.of_run(run_id, self.now, self.policy.away_s)
        if kept is not None and self.now - kept.seen < CHOOSE_AGAIN_S:
            return False
        has_been_next = reservations.waited(run_id, self.now) >= self.policy.reserve_after_s
        if kept is None and not has_been_next and not self._has_waited():
            return True
        outlook = self.board.outlooks.get(self.tx, self.board.roster, self.now)
        coming = outlook.seats(self.need, self._may_take, self.now)
        seats = list(islice(filter(self._is_there, coming), self.need.ranks))
        if len(seats) < self.need.ranks:
            return False
        begins = None if seats[-1].at == NEVER else max(self.now, seats[-1].at)
        if kept is None and begins is None and not has_been_next:
            return True
        since = self.now if kept is None else kept.since
        until = (since if begins is None else max(since, begins)) + self.policy.keep_for_gang_s
        priority = self.candidate.lane.priority
        made = Reservation(
            seats[0].host_id, run_id, priority, since, self.now, until, begins, self.need.ranks
        )
        reservations.reserve_gang(seats, made)
        return True

    def _has_waited(self) -> bool:
        """By its age: those of a lane should not wait one after the other. Not once it had hosts in vain."""
        ready = self.candidate.ready
        is_old = self.now - ready.ready_at >= self.policy.reserve_after_s
        return is_old and not self.board.reservations.gave_up(ready.id)

    def gather(self, host: Host, held: Sequence[LeaseHolding]) -> None:
        """A host that asks has room for some of its ranks: they need not wait for other hosts."""
        reservations, run_id = self.board.reservations, self.candidate.ready.id
        mine = reservations.of_run(run_id, self.now, self.policy.away_s)
        other = reservations.of_host(host.id, self.now, self.policy.away_s)
        if mine is None or (other is not None and not self._goes_before(other)):
            return
        last = NEVER if mine.begins is None else mine.begins
        ends = self.board.outlooks.get(self.tx, self.board.roster, self.now).ends
        seats = free_seats(host, held, ends, self.need, now=self.now)
        coming = list(takewhile(lambda seat: seat.at <= last, seats))
        if other is not None or (coming and coming[0].at <= self.now):
            others = [seat for seat in reservations.seats(run_id) if seat.host_id != host.id]
            reservations.gather(mine, [*filter(self._is_there, others), *coming])

    def _is_there(self, seat: FreeSeat) -> bool:
        """A seat that should be free by now may have been given to another run."""
        return seat.at > self.now or self.board.rooms.has(seat.host_id)

    def _goes_before(self, kept: Reservation) -> bool:
        return kept.run_id == self.candidate.ready.id or kept.priority < self.candidate.lane.priority

    def _may_take(self, host: Host) -> bool:
        lane, shapes = self.candidate.lane, self.board.shapes
        kept = self.board.reservations.of_host(host.id, self.now, self.policy.away_s)
        return (
            (kept is None or self._goes_before(kept))
            and host.takes_work(self.now)
            and not host.is_away(self.now, self.policy.away_s)
            and shapes.fits(self.tx, lane.shape, host)
            and shapes.admits(self.tx, lane.shape, lane.project, host)
        )
