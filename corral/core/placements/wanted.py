"""Which executors the list of a run stands for, and whether it may go on with them after one failed."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.queue.eligibility import parse_requirements
from corral.domain.errors import found
from corral.domain.hosts.capability import CHEAPEST, OWN_HOSTS, Requirements
from corral.domain.placements.placements import Placement
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import INSTANCE, Run
from corral.store.transaction import Tx


def need_of(tx: Tx, run: Run) -> Requirements:
    return parse_requirements(found(tx.runs.shape(run.shape), f"there is no shape {run.shape}"))


def usable(tx: Tx) -> list[str]:
    """Those that are there to stay, by name."""
    return [executor.name for executor in tx.executors.all() if executor.removed_at is None]


def spelled_out(executors: Sequence[str], others: Sequence[str]) -> list[str]:
    """The executors in the order of the list; `cheapest` stands for the `others` that it does not name."""
    rest = [name for name in others if name not in executors]
    found: list[str] = []
    for name in executors:
        found += rest if name == CHEAPEST else [] if name in OWN_HOSTS else [name]
    return found


def own_hosts_may_take(need: Requirements) -> bool:
    return not need.executors or bool(OWN_HOSTS & set(need.executors))


def may_be_placed_again(tx: Tx, run: Run, reason: Reason) -> bool:
    """After a placement that was lost. A run pays for it from its retries.

    An instance has none, since another is made in its stead: each of its executors gets one try, and where
    hosts that have joined may take it, it waits for them as it would without executors.
    """
    if run.kind != INSTANCE:
        return run.budgets.allows(run.used, reason)
    need = need_of(tx, run)
    tried = {one.executor for one in tx.placements.of_run(run.id) if one.lost}
    return own_hosts_may_take(need) or not set(spelled_out(need.executors, usable(tx))) <= tried


def rests_s(before: Sequence[Placement], now: float, *, longest_s: float) -> float:
    """How long after the placements that were lost no other is tried."""
    lost = [one for one in before if one.lost]
    if not lost:
        return 0.0
    last = max(one.closed_at or one.created_at for one in lost)
    return last + min(longest_s, 2.0 ** min(len(lost), 30)) - now
