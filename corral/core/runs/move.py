"""Moving a run along its table, and settling the runs that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.runs.dependencies import left
from corral.core.runs.transitions import step
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunEvent
from corral.store.transaction import Tx


def move(
    tx: Tx,
    run: Run,
    event: RunEvent,
    *,
    at: float,
    actor: str,
    data: Mapping[str, object] | None = None,
    **changes: Any,
) -> Run:
    """Step the run and write what changed with it. IllegalTransition if the table has no such row.

    If the run ended or left its place in its group, the runs that wait for that are queued in the same
    transaction.
    """
    moved = step(tx, run, event, at=at, actor=actor, data=data, **changes)
    left(tx, run, moved, now=at)
    return moved
