"""What a gang waits for: how many of its ranks there is room for, and what is missing; for people."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.why import RunStanding
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx

# So many hosts are named.
_NAMED = 5


def gang_summary(tx: Tx, board: Board, run: Run, hosts: Sequence[RunStanding]) -> str | None:
    """In one sentence; None for a run of one rank, or one that does not wait for room."""
    need = board.shapes.get(tx, run.shape)
    eligible = [one.host for one in hosts if one.eligible]
    if not need.is_gang or run.state is not RunState.QUEUED or not eligible:
        return None
    held = tx.leases.held_by_host()
    free = {
        host.name: HostCapacity(host, held[host.id], board.roster.ram(host.id)).places(need, need.ranks)
        for host in eligible
    }
    placed = min(need.ranks, sum(free.values()))
    most = sum(HostCapacity(host, ()).places(need, need.ranks) for host in eligible)
    now = f"queued: {placed} of the {need.ranks} ranks that start together have room now{_where(free)}"
    if most < need.ranks:
        return f"{now}; the hosts that can take them hold {most} in all, so {need.ranks - most} have no place"
    if placed < need.ranks:
        return f"{now}; it waits for {need.ranks - placed} more"
    return f"{now}; it starts at the next poll, unless other runs go first"


def _where(free: dict[str, int]) -> str:
    names = [f"{count} on {name}" for name, count in free.items() if count]
    more = [f"more on {len(names) - _NAMED} other hosts"] if len(names) > _NAMED else []
    return f" ({', '.join(names[:_NAMED] + more)})" if names else ""


def gang_notes(tx: Tx, board: Board, run: Run, *, now: float, policy: ServerPolicy) -> list[str]:
    """Which hosts are kept for it, and when it should begin."""
    kept = board.reservations.of_run(run.id, now, policy.away_s)
    if kept is None or not kept.is_gangs:
        return []
    found = [tx.hosts.get(host_id) for host_id in board.reservations.hosts_of(run.id)]
    names = [host.name for host in found if host is not None]
    told = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    when = (
        "when their runs end"
        if kept.begins is None
        else f"in {max(0.0, kept.begins - now):.0f} s at the latest"
    )
    return [
        f"hosts are kept for it ({told}): it should begin {when};"
        " until then they take only runs that go first or end in time"
    ]
