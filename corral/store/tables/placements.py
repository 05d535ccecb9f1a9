"""Executors, and placements: what was asked of them, and what came of it."""

from __future__ import annotations

from corral.domain.ids import Digest, PlacementId, RunId
from corral.domain.placements.placements import ExecutorCosts, ExecutorRecord, Placement
from corral.store.rows import EXECUTOR, PLACEMENT
from corral.store.table import Table, given


class SqlExecutors(Table):
    def insert(self, executor: ExecutorRecord) -> None:
        self._db.put("executor_insert", EXECUTOR, executor)

    def get(self, name: str) -> ExecutorRecord | None:
        return self._one(EXECUTOR, "executor_get", name=name)

    def lock(self, name: str) -> ExecutorRecord | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        return self._one(EXECUTOR, "executor_lock", name=name)

    def all(self) -> list[ExecutorRecord]:
        return self._all(EXECUTOR, "executor_all")

    def save(self, executor: ExecutorRecord) -> None:
        self._db.put("executor_save", EXECUTOR, executor)

    def delete(self, name: str) -> bool:
        return self._changed("executor_delete", name=name)


class SqlPlacements(Table):
    def insert(self, placement: Placement) -> None:
        self._db.put("placement_insert", PLACEMENT, placement)

    def get(self, placement_id: PlacementId) -> Placement | None:
        return self._one(PLACEMENT, "placement_get", id=placement_id)

    def lock(self, placement_id: PlacementId) -> Placement | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        return self._one(PLACEMENT, "placement_lock", id=placement_id)

    def save(self, placement: Placement) -> None:
        """Write every column that may change after insert."""
        self._db.put("placement_save", PLACEMENT, placement)

    def open(self, executor: str | None = None) -> list[Placement]:
        """Those that something may run for."""
        return self._all(PLACEMENT, "placement_open", **given(executor=executor))

    def intended(self, executor: str) -> int:
        """How many wait for the executor to take them."""
        return self._number("placement_intended", executor=executor)

    def waiting(self, project: str) -> list[tuple[int, Digest]]:
        """The ranks and the shape of what executors have, or are to bring up, for runs that do not run."""
        return [(row[0], Digest(row[1])) for row in self._db.all("placement_waiting", {"project": project})]

    def of_run(self, run_id: RunId) -> list[Placement]:
        """The oldest first."""
        return self._all(PLACEMENT, "placement_of_run", run_id=run_id)

    def costs(self, executor: str, now: float) -> ExecutorCosts:
        ((cost, unpriced),) = self._db.all("placement_costs", {"executor": executor, "now": now})
        return ExecutorCosts(cost, unpriced)
