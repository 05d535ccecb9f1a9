"""Giving a host one more rank of an elastic run, when nothing that waits in the queue is for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from corral.core.queue.choose import Chooser
from corral.core.queue.cohorts import Seat
from corral.core.queue.free_capacity import bytes_held
from corral.core.queue.grants import Granting
from corral.domain.leases import Lease
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.runs import Rank, Run
from corral.domain.runs.states import RankState, RunState
from corral.store.transaction import Tx

# So many ranks are looked at in one turn.
_MOST = 10_000
_UNSTARTED = (RankState.WAITING, RankState.ENDED)


@dataclass(frozen=True)
class Grower:
    granting: Granting
    chooser: Chooser

    def grow(self, most: int) -> Iterator[tuple[Lease, Run, str]]:
        """Up to `most` leases, each with its run and the run's spec."""
        board, left = self.granting.board, most
        for lane, ready in board.growth.all() if most > 0 else ():
            if not self.chooser.may_grow(lane):
                continue
            found = self.granting.tx.runs.try_lock(ready.id)
            if found is None:
                continue
            run, spec = found
            for rank in self._unstarted(run):
                if left <= 0:
                    return
                grown = self._take(lane, run, rank)
                if grown is None:
                    break
                lease, run = grown
                left -= 1
                yield lease, run, spec
            else:
                board.growth.done(run.id)

    def _unstarted(self, run: Run) -> list[Rank]:
        if run.state is not RunState.RUNNING or not run.elastic:
            return []
        ranks = self.granting.tx.attempts.ranks(run.id, run.attempt)
        return [rank for rank in ranks if rank.state in _UNSTARTED]

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
    return [
        (Lane(run.shape, run.priority, run.project), ReadyRun(run.ready_at, run.id)) for run in runs if run
    ]
