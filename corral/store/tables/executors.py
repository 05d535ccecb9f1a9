"""The executors of this installation."""

from __future__ import annotations

from corral.domain.placements.placements import ExecutorRecord
from corral.store.rows import EXECUTOR
from corral.store.table import Table


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
