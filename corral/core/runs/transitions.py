"""Moving a run along its table, and what that means for the runs that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.runs.dependencies import left
from corral.core.runs.history import (
    TOPIC_HOST,
    TOPIC_LOG,
    TOPIC_QUOTA,
    TOPIC_READY,
    TOPIC_RUN,
    TOPIC_STOP,
    born,
    parse_ready_key,
    ready_key,
    record,
    step,
)
from corral.domain.runs import Run
from corral.domain.states import RunEvent
from corral.store.transaction import Tx

__all__ = [
    "TOPIC_HOST",
    "TOPIC_LOG",
    "TOPIC_QUOTA",
    "TOPIC_READY",
    "TOPIC_RUN",
    "TOPIC_STOP",
    "born",
    "move",
    "parse_ready_key",
    "ready_key",
    "record",
]


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

    If it ended or left its place, those that wait for that are queued in the same transaction.
    """
    moved = step(tx, run, event, at=at, actor=actor, data=data, **changes)
    left(tx, run, moved, now=at)
    return moved
