"""Segments of logs and metrics; their bytes are in the segment store."""

from __future__ import annotations

from corral.domain.artifacts import Segment
from corral.domain.ids import RunId
from corral.store.rows import SEGMENT
from corral.store.table import Table


class SqlLogs(Table):
    def put(self, segment: Segment) -> None:
        """Insert or replace."""
        self._db.put("segment_put", SEGMENT, segment)
        self._tell("segment_mark_run", run_id=segment.run_id, logged=1)

    def segments(self, run_id: RunId, stream: str) -> list[Segment]:
        return self._all(SEGMENT, "segment_all", run_id=run_id, stream=stream)

    def last(self, run_id: RunId, attempt: int, rank: int, stream: str) -> Segment | None:
        return self._one(SEGMENT, "segment_last", run_id=run_id, attempt=attempt, rank=rank, stream=stream)

    def removed_runs(self, limit: int) -> list[RunId]:
        """Runs that were removed and still have segments."""
        return self._column("segment_runs_gone", limit=limit)

    def delete(self, run_id: RunId) -> int:
        """Delete the segments of the run; return how many there were."""
        self._tell("segment_mark_run", run_id=run_id, logged=0)
        self._tell("segment_run_gone_delete", run_id=run_id)
        return self._db.run("segment_delete", {"run_id": run_id})
