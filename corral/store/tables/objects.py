"""Small objects that a run keeps by key."""

from __future__ import annotations

from corral.domain.artifacts import KeptObject, NamedObject, ObjectCounts
from corral.domain.ids import RunId
from corral.store.rows import KEPT_OBJECT, OBJECT, OBJECT_COUNTS
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


class SqlKeptObjects(Table):
    """Names that runs have for blobs, over all their attempts."""

    def put(self, item: KeptObject) -> None:
        """Insert or replace."""
        self._db.put("kept_put", KEPT_OBJECT, item)

    def get(self, run_id: RunId, key: str) -> KeptObject | None:
        return self._one(KEPT_OBJECT, "kept_get", run_id=run_id, key=key)

    def below(self, run_id: RunId, prefix: str, *, after: str, limit: int) -> list[KeptObject]:
        """By key."""
        params = {"run_id": run_id, "prefix": prefix, "after": after, "limit": limit}
        return self._all(KEPT_OBJECT, "kept_list", beyond=prefix + _LAST_CHARACTER, **params)

    def count(self, run_id: RunId) -> int:
        return self._number("kept_count", run_id=run_id)

    def delete(self, run_id: RunId, key: str) -> None:
        self._tell("kept_delete", run_id=run_id, key=key)

    def of_ended(self, limit: int) -> list[KeptObject]:
        """Those of runs that have ended, or are not there any more."""
        return self._all(KEPT_OBJECT, "kept_of_ended", limit=limit)

    def page(self, after: tuple[str, str] | None, limit: int) -> list[tuple[KeptObject, int | None]]:
        """By run and key, each with the size of its blob; None where the project has none."""
        run_id, key = after or ("", "")
        rows = self._db.all("kept_page", {"after_run": run_id, "after_key": key, "limit": limit})
        return [(KEPT_OBJECT.read(row[:-1]), row[-1]) for row in rows]
