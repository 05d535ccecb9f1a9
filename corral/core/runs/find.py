"""Looking a run up by its id, read or held against change."""

from __future__ import annotations

from corral.domain.errors import NotFound
from corral.domain.ids import RunId
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx


def read_run(tx: Tx, run_id: RunId) -> Run:
    return _found(tx.runs.get(run_id), run_id)


def lock_run(tx: Tx, run_id: RunId) -> Run:
    return _found(tx.runs.lock(run_id), run_id)


def _found(run: Run | None, run_id: RunId) -> Run:
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    return run
