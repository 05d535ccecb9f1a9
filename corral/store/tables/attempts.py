"""Attempts and their ranks."""

from __future__ import annotations

from corral.domain.ids import RunId
from corral.domain.runs import Attempt, Rank
from corral.store.connection import Connection
from corral.store.rows import ATTEMPT, RANK


class SqlAttempts:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def open(self, attempt: Attempt) -> None:
        self._db.put("attempt_insert", ATTEMPT, attempt)

    def close(self, run_id: RunId, number: int, at: float) -> None:
        self._db.tell("attempt_close", {"run_id": run_id, "number": number, "at": at})

    def of_run(self, run_id: RunId) -> list[Attempt]:
        return [ATTEMPT.read(row) for row in self._db.all("attempt_of_run", {"run_id": run_id})]

    def insert_rank(self, rank: Rank) -> None:
        self._db.put("rank_insert", RANK, rank)

    def rank(self, run_id: RunId, attempt: int, rank: int) -> Rank | None:
        row = self._db.one("rank_get", {"run_id": run_id, "attempt": attempt, "rank": rank})
        return None if row is None else RANK.read(row)

    def ranks(self, run_id: RunId, attempt: int) -> list[Rank]:
        rows = self._db.all("rank_all", {"run_id": run_id, "attempt": attempt})
        return [RANK.read(row) for row in rows]

    def save_rank(self, rank: Rank) -> None:
        self._db.put("rank_save", RANK, rank)
