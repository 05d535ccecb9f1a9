"""Lists of runs as people look at them: without the instances of functions, which nobody submitted."""

from __future__ import annotations

from dataclasses import replace

from corral.domain.ids import RunId
from corral.domain.runs.runs import INSTANCE, Run, RunFilter
from corral.store.transaction import Tx


def without_instances(where: RunFilter) -> RunFilter:
    return replace(where, other_kind=INSTANCE)


def hidden_instances(
    tx: Tx,
    where: RunFilter,
    *,
    after: tuple[float, RunId] | None,
    oldest: Run | None,
    count_to: int,
) -> int:
    """How many of them, up to `count_to`, would stand on a page that ends with `oldest`; None is the end."""
    hidden = tx.runs.page(replace(where, kind=INSTANCE), after=after, limit=count_to)
    if oldest is None:
        return len(hidden)
    return sum((one.created_at, one.id) > (oldest.created_at, oldest.id) for one in hidden)
