"""Small objects that a run keeps by key."""

from __future__ import annotations

from corral.domain.artifacts import NamedObject, ObjectCounts
from corral.domain.ids import RunId
from corral.store.rows import OBJECT, OBJECT_COUNTS
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

    def delete(self, run_id: RunId, key: str) -> None:
        self._tell("object_delete", run_id=run_id, key=key)

    def counts(self, run_id: RunId) -> ObjectCounts | None:
        return self._one(OBJECT_COUNTS, "object_counts", run_id=run_id)

    def put_counts(self, counts: ObjectCounts) -> None:
        """Insert or replace."""
        self._db.put("object_counts_put", OBJECT_COUNTS, counts)

    def ended_runs(self, limit: int) -> list[RunId]:
        """Runs that have objects and have ended."""
        return self._column("object_ended_runs", limit=limit)

    def clear(self, run_id: RunId) -> None:
        """Delete all of a run."""
        self._tell("run_delete_objects", run_id=run_id)
        self._tell("run_delete_object_counts", run_id=run_id)

    def bytes_of(self, project: str) -> int:
        """What all objects of the project's runs have together."""
        return self._number("object_bytes_of", project=project)
