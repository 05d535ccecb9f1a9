"""Retry budgets: queueing a run again after a failed attempt, or failing it."""

from __future__ import annotations

from corral.core.runs.dependencies import move
from corral.core.runs.more_memory import MoreMemory
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import BUDGET_OF, Budget
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunEvent
from corral.store.transaction import Tx

LONGEST_BACKOFF_S = 60.0


def retry_or_fail(
    tx: Tx,
    run: Run,
    reason: Reason,
    detail: str,
    *,
    now: float,
    actor: str,
    exit_code: int | None = None,
    signal: int | None = None,
    more: MoreMemory | None = None,
) -> Run:
    """Queue the run again if the reason's budget allows it; otherwise it has failed.

    `more` is what an attempt that ran out of memory is followed by.
    """
    if more is not None and not more.helps:
        detail = f"{detail}\n{more.said}".strip()
    changes = {"reason": reason, "detail": detail or None, "exit_code": exit_code, "signal": signal}
    data: dict[str, object] = {"reason": reason, "attempt": run.attempt}
    if detail:
        data["detail"] = detail[:2000]
    over_wall = run.wall_limit_s is not None and run.ran_s >= run.wall_limit_s
    in_vain = more is not None and not more.helps
    if over_wall or in_vain or not run.budgets.allows(run.used, reason):
        tx.attempts.close(run.id, run.attempt, now)
        run = run._replace(ended_at=now, artifact_id=None)
        return move(tx, run, RunEvent.FAIL, at=now, actor=actor, data=data, **changes)
    run = run.charged(reason)
    if more is not None:
        data["more"] = more.said
        run = _reshaped(tx, run, more)
    run = move(tx, run, RunEvent.REQUEUE, at=now, actor=actor, data=data, **changes)
    if BUDGET_OF[reason] is Budget.CODE:
        # The run's own error may be the same at once; give what it depends on a moment.
        wait_s = min(LONGEST_BACKOFF_S, 2.0 ** (run.used_code - 1))
        run = move(
            tx,
            run,
            RunEvent.HOLD,
            at=now,
            actor="corral",
            data={"hold_reason": HoldKind.BACKOFF.value, "for_s": wait_s},
            hold_reason=run.hold_reason or HoldKind.BACKOFF.value,
            not_before=now + wait_s,
        )
    return run


def _reshaped(tx: Tx, run: Run, more: MoreMemory) -> Run:
    if more.shape != run.shape:
        tx.runs.reshape(run.id, more.shape)
    return run._replace(shape=more.shape)
