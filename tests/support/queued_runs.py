"""Queued runs in a store, and the lanes over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from corral.core.queue.fair_share import Shares
from corral.core.queue.lanes import Candidate, Lanes
from corral.domain.ids import Digest, RunId, new_run_id
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx
from support.memory_database import CountingTx, MemoryDatabase


def shape_of(name: str) -> Digest:
    return Digest(hashlib.sha256(name.encode()).hexdigest())


def a_queued_run(
    *,
    shape: str = "a",
    priority: int = 0,
    project: str = "alpha",
    ready_at: float = 1.0,
    used_infrastructure: int = 0,
) -> Run:
    return Run(
        id=new_run_id(),
        project=project,
        name="train",
        kind="command",
        group_id=None,
        seed=None,
        identity=shape_of("identity"),
        manifest=None,
        generation=1,
        shape=shape_of(shape),
        priority=priority,
        labels="{}",
        submitted_by="user:ada",
        created_at=ready_at,
        world_size=1,
        min_ranks=1,
        elastic=False,
        retry_infrastructure=3,
        retry_memory=0,
        retry_code=0,
        wall_limit_s=None,
        stall_limit_s=None,
        grace_s=30.0,
        state=RunState.QUEUED,
        hold_reason=None,
        not_before=None,
        ready_at=ready_at,
        started_at=None,
        ended_at=None,
        reason=None,
        detail=None,
        exit_code=None,
        signal=None,
        attempt=0,
        epoch=0,
        used_infrastructure=used_infrastructure,
        used_memory=0,
        used_code=0,
        ran_s=0.0,
        stop_deadline=None,
        stop_reason=None,
        last_host=None,
        artifact_id=None,
        metrics="{}",
        event_n=1,
    )


class QueuedRuns:
    """Runs are added as a submit would: in the store, and heard of."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.db = database
        self.lanes = Lanes()
        self.shares = Shares()

    def add(
        self,
        *,
        shape: str = "a",
        priority: int = 0,
        project: str = "alpha",
        ready_at: float = 1.0,
        used_infrastructure: int = 0,
    ) -> RunId:
        run = a_queued_run(
            shape=shape,
            priority=priority,
            project=project,
            ready_at=ready_at,
            used_infrastructure=used_infrastructure,
        )
        self.db.now_write(lambda tx: tx.runs.insert(run, "{}"))
        self.lanes.heard(Lane(run.shape, run.priority, run.project), ReadyRun(run.ready_at, run.id))
        return run.id

    def leave(self, run_id: RunId) -> None:
        """Cancelled behind the lanes' back."""
        run = self.db.now_read(lambda tx: tx.runs.get(run_id))
        assert run is not None
        self.db.now_write(lambda tx: tx.runs.save(run._replace(state=RunState.CANCELLED)))

    def look(
        self, fits: Callable[[Digest], bool] = lambda _: True
    ) -> tuple[Candidate | None, dict[str, int]]:
        """The next one, and which calls of the store that took."""

        def unit(tx: Tx) -> tuple[Candidate | None, dict[str, int]]:
            counting = CountingTx(tx)
            found = self.lanes.take(counting, fits, lambda project: self.shares.weight(project, 0.0))
            return found, dict(counting.counted)

        return self.db.now_read(unit)

    def take(self) -> Candidate:
        found, _ = self.look()
        assert found is not None
        return found

    def take_all(self) -> list[RunId]:
        order = []
        while (found := self.look()[0]) is not None:
            # Taken for good, or a lane that is read anew would show it again.
            self.leave(found.ready.id)
            order.append(found.ready.id)
        return order
