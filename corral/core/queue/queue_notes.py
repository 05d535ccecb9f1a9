"""Which of the queue's own rules hold a run back or help it; for people."""

from __future__ import annotations

from corral.core.policy import ServerPolicy
from corral.core.queue.choose import Board
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx


def held_back(tx: Tx, board: Board, run: Run, *, policy: ServerPolicy) -> str | None:
    """Why its project's quota keeps a queued run from starting, as a claim would judge it."""
    if run.state is not RunState.QUEUED:
        return None
    need = board.shapes.get(tx, run.shape)
    return board.shares.held_back(run.project, need.gpus, keep_s=policy.margin_s(run))


def group_is_full(tx: Tx, run: Run) -> str | None:
    """How full the group is whose limit holds the run."""
    group = None if run.group_id is None else tx.groups.get(run.group_id)
    if run.hold is not HoldKind.CONCURRENCY or group is None or group.max_running is None:
        return None
    placed = tx.groups.placed(group.id, but=run.id, limit=group.max_running)
    return f"{placed} runs of group {group.name} have one, of {group.max_running} (max_running)"


def _without_gpu(tx: Tx, board: Board, run: Run, *, policy: ServerPolicy) -> str | None:
    """Why the quota gives no GPU to a run that prefers one and can do without."""
    need = board.shapes.get(tx, run.shape)
    return board.shares.held_back(run.project, need.gpus_at_best, keep_s=policy.margin_s(run))


def notes(tx: Tx, board: Board, run: Run, *, now: float, policy: ServerPolicy) -> list[str]:
    """Sentences for a queued run: its quota, the host that is kept for it, what ageing gives it."""
    if run.state is not RunState.QUEUED:
        return []
    found: list[str] = []
    if (held := held_back(tx, board, run, policy=policy)) is not None:
        found.append(f"its quota holds it back: {held}")
    elif (without := _without_gpu(tx, board, run, policy=policy)) is not None:
        found.append(f"its quota leaves it no GPU, so it starts without one: {without}")
    if (kept := board.reservations.of_run(run.id, now, policy.away_s)) is not None:
        host = tx.hosts.get(kept.host_id)
        name = host.name if host is not None else kept.host_id
        found.append(
            f"host {name} has been reserved for it for {now - kept.since:.0f} s:"
            " until it fits there, the host takes only runs that go first or end in time"
        )
    if policy.ageing_s is not None:
        points = int(max(0.0, now - run.ready_at) / policy.ageing_s)
        found.append(f"its priority is {run.priority}, and {points} more for the time that it has waited")
    return found
