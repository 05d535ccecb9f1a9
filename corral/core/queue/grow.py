"""Giving a host one more rank of an elastic run, when nothing that waits in the queue is for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from corral.core.queue.choose import Chooser
from corral.core.queue.cohorts import Seat
from corral.core.queue.free_capacity import bytes_held
from corral.core.queue.grants import Granting
from corral.domain.ids import RunId
from corral.domain.leases import Lease
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.runs import Rank, Run
from corral.domain.runs.states import UNSTARTED_RANKS, RunState
from corral.store.transaction import Tx

# So many ranks are looked at in one turn.
_MOST = 10_000


@dataclass(frozen=True)
class Grower:
    granting: Granting
    chooser: Chooser

    def grow(self, most: int) -> Iterator[tuple[Lease, Run, str]]:
        """Up to `most` leases, each with its run and the run's spec."""
        left = most
        for lane, ready in self.granting.board.growth.all():
            for grown in self._ranks_of(lane, ready.id, left):
                left -= 1
                yield grown
            if left <= 0:
                return

    def join(self, run_id: RunId) -> Iterator[tuple[Lease, Run, str]]:
        """A rank of the one run that the host's worker may take; no hint is needed to look at it."""
        run = self.granting.tx.runs.get(run_id)
        if run is not None and run.elastic and run.state is RunState.RUNNING:
            yield from self._ranks_of(_lane(run), run_id, 1)

    def _ranks_of(self, lane: Lane, run_id: RunId, most: int) -> Iterator[tuple[Lease, Run, str]]:
        if not self.chooser.may_grow(lane):
            return
        found = self.granting.tx.runs.try_lock(run_id)
        if found is None:
            return
        run, spec = found
        for count, rank in enumerate(self._unstarted(run)):
            grown = self._take(lane, run, rank) if count < most else None
            if grown is None:
                return
            lease, run = grown
            yield lease, run, spec
        self.granting.board.growth.done(run_id)

    def _unstarted(self, run: Run) -> list[Rank]:
        if run.state is not RunState.RUNNING or not run.elastic:
            return []
        ranks = self.granting.tx.attempts.ranks(run.id, run.attempt)
        return [rank for rank in ranks if rank.state in UNSTARTED_RANKS]

    def _take(self, lane: Lane, run: Run, rank: Rank) -> tuple[Lease, Run] | None:
        chooser = self.chooser
        need = self.granting.board.shapes.get(self.granting.tx, lane.shape)
        if not chooser.free.fits(need) or not chooser.may_take_rank(run, need):
            return None
        seat = Seat(chooser.host, chooser.free.take(need, need.gpus))
        lease, run = self.granting.one_more(run, rank, seat, bytes_held(need))
        chooser.granted(lease, need)
        return lease, run


def growing(tx: Tx) -> list[tuple[Lane, ReadyRun]]:
    """The elastic runs with ranks that no host has."""
    runs = (tx.runs.get(run_id) for run_id in {rank.run_id for rank in tx.attempts.unstarted(_MOST)})
    return [(_lane(run), ReadyRun(run.ready_at, run.id)) for run in runs if run]


def _lane(run: Run) -> Lane:
    return Lane(run.shape, run.priority, run.project)
