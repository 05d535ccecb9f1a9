"""Placements: what was asked of executors, and what came of it."""

from __future__ import annotations

from corral.domain.ids import PlacementId, RunId
from corral.domain.placements.placements import Placement
from corral.store.rows import PLACEMENT
from corral.store.table import Table, given


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

    def of_run(self, run_id: RunId) -> list[Placement]:
        """The oldest first."""
        return self._all(PLACEMENT, "placement_of_run", run_id=run_id)

    def delete_of_run(self, run_id: RunId) -> None:
        self._tell("placement_delete_of_run", run_id=run_id)
