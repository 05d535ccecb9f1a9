"""Lists of runs as people look at them: without the instances of functions, which nobody submitted."""

from __future__ import annotations

from dataclasses import replace

from corral.domain.ids import RunId
from corral.domain.runs.runs import INSTANCE, Run, RunFilter
from corral.store.transaction import Tx


def without_instances(
    tx: Tx, where: RunFilter, *, after: tuple[float, RunId] | None, limit: int, count_to: int
) -> tuple[list[Run], int]:
    """A page without instances, and how many of them, up to `count_to`, would stand among these runs."""
    runs = tx.runs.page(replace(where, other_kind=INSTANCE), after=after, limit=limit)
    hidden = tx.runs.page(replace(where, kind=INSTANCE), after=after, limit=count_to)
    if len(runs) < limit:
        return runs, len(hidden)
    oldest = (runs[-1].created_at, runs[-1].id)
    return runs, sum((one.created_at, one.id) > oldest for one in hidden)
