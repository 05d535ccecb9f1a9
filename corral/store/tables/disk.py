"""What takes space, summed over the other tables."""

from __future__ import annotations

from corral.domain.disk import KindUse, ProjectUse, RunUse
from corral.domain.ids import RunId
from corral.store.table import Table


class SqlDisk(Table):
    def projects(self) -> list[ProjectUse]:
        loose = {row[0]: int(row[1]) for row in self._db.all("disk_loose", {})}
        rows = self._db.all("disk_projects", {})
        return [ProjectUse(row[0], int(row[1]), int(row[2]), loose.get(row[0], 0)) for row in rows]

    def kinds(self) -> list[KindUse]:
        rows = [*self._db.all("disk_artifacts", {}), *self._db.all("disk_logs", {})]
        return [KindUse(row[0], row[1], int(row[2]), int(row[3])) for row in rows]

    def largest_runs(self, limit: int) -> list[RunUse]:
        return [RunUse(RunId(row[0]), int(row[1])) for row in self._db.all("disk_runs", {"limit": limit})]
