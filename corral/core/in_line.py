"""What of the queue's own rules holds a run back, or is done for it."""

from __future__ import annotations

from corral.core.choose import Board
from corral.core.policy import Policy
from corral.domain.run import Run
from corral.domain.states import RunState
from corral.ports.store import Tx


def notes(tx: Tx, board: Board, run: Run, *, now: float, policy: Policy) -> list[str]:
    """Sentences for a queued run: its quota, the host that is kept for it, what ageing gives it."""
    if run.state is not RunState.QUEUED:
        return []
    found: list[str] = []
    need = board.shapes.get(tx, run.shape)
    if (held := board.shares.held_back(run.project, need.gpus_at_best)) is not None:
        found.append(f"its quota holds it back: {held}")
    if (kept := board.reservations.of_run(run.id, now, policy.away_s)) is not None:
        host = tx.hosts.get(kept.host_id)
        name = host.name if host is not None else kept.host_id
        found.append(
            f"host {name} is kept for it since {now - kept.since:.0f} s:"
            " it takes no run of later rank until this one fits, but for what ends before"
        )
    if policy.ageing_s is not None:
        points = int(max(0.0, now - run.ready_at) / policy.ageing_s)
        found.append(f"its priority is {run.priority}, and {points} more for the time that it has waited")
    return found
