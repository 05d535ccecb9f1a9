"""Small objects that a run keeps by key."""

from __future__ import annotations

from corral.domain.artifacts import NamedObject
from corral.domain.ids import RunId
from corral.store.rows import OBJECT
from corral.store.table import Table

_LAST_CHARACTER = "\U0010ffff"


class SqlObjects(Table):
    def put(self, item: NamedObject) -> None:
        """Insert or replace."""
        self._db.put("object_put", OBJECT, item)

    def get(self, run_id: RunId, key: str) -> NamedObject | None:
        return self._one(OBJECT, "object_get", run_id=run_id, key=key)

    def keys(self, run_id: RunId, prefix: str, *, after: str, limit: int) -> list[str]:
        beyond = prefix + _LAST_CHARACTER
        return self._column(
            "object_keys", run_id=run_id, prefix=prefix, beyond=beyond, after=after, limit=limit
        )

    def count(self, run_id: RunId) -> int:
        return self._number("object_count", run_id=run_id)
