"""Attempts and their ranks."""

from __future__ import annotations

from corral.domain.ids import RunId
from corral.domain.runs.runs import Attempt, Rank
from corral.store.rows import ATTEMPT, RANK
from corral.store.table import Table


class SqlAttempts(Table):
    def open(self, attempt: Attempt) -> None:
        self._db.put("attempt_insert", ATTEMPT, attempt)

    def close(self, run_id: RunId, number: int, at: float) -> None:
        self._tell("attempt_close", run_id=run_id, number=number, at=at)

    def reopen(self, run_id: RunId, number: int) -> None:
        self._tell("attempt_reopen", run_id=run_id, number=number)

    def of_run(self, run_id: RunId) -> list[Attempt]:
        return self._all(ATTEMPT, "attempt_of_run", run_id=run_id)

    def insert_rank(self, rank: Rank) -> None:
        self._db.put("rank_insert", RANK, rank)

    def rank(self, run_id: RunId, attempt: int, rank: int) -> Rank | None:
        return self._one(RANK, "rank_get", run_id=run_id, attempt=attempt, rank=rank)

    def ranks(self, run_id: RunId, attempt: int) -> list[Rank]:
        return self._all(RANK, "rank_all", run_id=run_id, attempt=attempt)

    def unstarted(self, limit: int) -> list[Rank]:
        """Ranks of running elastic runs that no host has."""
        return self._all(RANK, "rank_unstarted", limit=limit)

    def save_rank(self, rank: Rank) -> None:
        self._db.put("rank_save", RANK, rank)
