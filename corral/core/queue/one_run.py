"""Choosing for a worker that may take one run: that run, wherever in the queue it stands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from corral.core.queue.choose import Chooser
from corral.core.queue.cohorts import Seat
from corral.core.queue.eligibility import verdict
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.lanes import Candidate
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import Digest, HostId, RunId
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState


@dataclass
class OneRunChooser(Chooser):
    """Quotas, limits of groups and what the host can take count as for any other; the order does not.

    A gang starts when as many workers of its own are there as it must have, each for one rank.
    """

    only: RunId = field(kw_only=True)
    _looked: bool = False
    _claimable: ClassVar[frozenset[RunState]] = frozenset({RunState.QUEUED, RunState.PLACING})

    def _take(self) -> Candidate | None:
        run = None if self._looked else self.tx.runs.get(self.only)
        self._looked = True
        if run is None or run.state not in self._claimable or not self._fits(run.shape):
            return None
        candidate = Candidate(Lane(run.shape, run.priority, run.project), ReadyRun(run.ready_at, run.id))
        return candidate if self._may(candidate) else None

    def _fits(self, shape: Digest) -> bool:
        """The host was brought up for the run: by which executor does not matter any more."""
        need = self.board.shapes.get(self.tx, shape)
        return verdict(replace(need, executors=()), self.host).eligible

    def _gang_may(self, candidate: Candidate, need: Requirements) -> bool:
        return len(self._workers(need)) >= need.ranks

    def _seats(self, candidate: Candidate, run: Run, need: Requirements, most: int) -> list[Seat]:
        if not need.is_gang:
            return super()._seats(candidate, run, need, most)
        seats: list[Seat] = []
        for host_id in self._workers(need)[:most]:
            # Whoever waits for another's lock while it holds its own would wait in a circle.
            host = self.host if host_id == self.host.id else self.tx.hosts.try_lock(host_id)
            if host is None:
                return []
            seats.append(Seat(host, HostCapacity(host, ()).take(need, need.gpus)))
        return seats if len(seats) >= need.ranks else []

    def _workers(self, need: Requirements) -> list[HostId]:
        """The hosts of the run's own workers that wait for it, in the order of its tokens."""
        found: list[HostId] = []
        for token in self.tx.tokens.of_run(self.only):
            host = None if token.host_id is None else self.tx.hosts.get(token.host_id)
            if host is None or host.id in found or not token.holds(self.now):
                continue
            if host.id == self.host.id:
                host = self.host
            if self._waits(host) and HostCapacity(host, ()).places(_a_rank(need), 1) == 1:
                found.append(host.id)
        return found

    def _waits(self, host: Host) -> bool:
        if host.capability is None or host.is_away(self.now, self.policy.away_s):
            return False
        return host.takes_work(self.now) and not self.tx.leases.held(host.id)


def _a_rank(need: Requirements) -> Requirements:
    return replace(need, executors=(), ranks=1, most_ranks=1)
