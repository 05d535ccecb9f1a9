"""Why a run is held. The words are kept in `hold_reason`, and shown."""

from __future__ import annotations

from collections.abc import Sequence

from corral.domain.runs import Run
from corral.domain.states import FINAL, RunState

BACKOFF = "backoff"
CONCURRENCY = "concurrency"
# It is no longer in its manifest. One that runs is marked with it too, and is not queued again.
REMOVED = "removed"
_WAITS = "waits for "
_HELD_BY = "held by "


def waits_for(parents: Sequence[str]) -> str:
    more = f" and {len(parents) - 1} more" if len(parents) > 1 else ""
    return f"{_WAITS}{parents[0]}{more}"


def held_by(actor: str) -> str:
    return f"{_HELD_BY}{actor.partition(':')[2] or actor}"


def is_waiting(run: Run) -> bool:
    """For its parents; somebody's hold, or a removal, stays until it is taken back."""
    return run.state is RunState.HELD and (run.hold_reason or "").startswith(_WAITS)


def is_held_by_somebody(run: Run) -> bool:
    return run.state is RunState.HELD and (run.hold_reason or "").startswith(_HELD_BY)


def has_place(run: Run) -> bool:
    """Whether it counts against `max_running` of its group. A retry keeps its place."""
    if run.state is RunState.HELD:
        return run.hold_reason == BACKOFF
    return run.state not in FINAL
