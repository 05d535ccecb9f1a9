"""Which installation the database belongs to."""

from __future__ import annotations

from corral.domain.installation import Installation
from corral.store.rows import INSTALLATION
from corral.store.table import Table


class SqlInstallation(Table):
    def get(self) -> Installation | None:
        return self._one(INSTALLATION, "installation_get")

    def insert(self, installation: Installation) -> None:
        self._db.put("installation_insert", INSTALLATION, installation)

    def count_runs(self) -> int:
        return self._number("installation_count_runs")
