"""Which exit code a followed run gives; docs/reference/exit-codes.md is the same in words."""

from __future__ import annotations

from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState
from corral.wire.runs import RunView

FAILED = 1
WALL_LIMIT = 124
DETACHED = 130
CANCELLED = 143
_SIGNAL_BASE = 128


def exit_code(run: RunView) -> int:
    """The code of a final run, as a shell would give it for the program itself."""
    if run.state == RunState.SUCCEEDED:
        return 0
    if run.state == RunState.CANCELLED:
        return CANCELLED
    if run.reason == Reason.WALL_LIMIT:
        return WALL_LIMIT
    if run.signal:
        return _SIGNAL_BASE + run.signal
    # A run can fail although its program ended well, as when its output is refused.
    return (run.exit_code or 0) & 0xFF or FAILED
