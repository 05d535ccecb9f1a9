"""What to do next, beside the reason for which a run ended."""

from __future__ import annotations

from corral.domain.runs.reasons import HINTS, Reason
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL

_GO_ON = "; training goes on from the last checkpoint with `--set train.adapter={run}`"


def hint_of(run: Run) -> str | None:
    """None for a run that has not ended, or whose reason says it all."""
    hint = HINTS.get(run.reason) if run.reason is not None and run.state in FINAL else None
    if hint is None:
        return None
    if run.reason is Reason.WALL_LIMIT and run.kind == "train":
        hint = hint.removesuffix(".") + _GO_ON + "."
    # Of a run of several ranks, `corral logs` alone shows the first, which may not be the one that failed.
    logs = f"corral logs {run.id}{' --all' if run.world_size > 1 else ''}"
    return hint.format(run=run.id, logs=logs)
