"""What placements cost: their price for as long as a cluster holds something for them."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.leases.usage import cost_so_far
from corral.domain.leases import Lease
from corral.domain.placements.orders import Sighting, SightState
from corral.domain.placements.placements import Placement, PlacementState
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx

# A worker in one of these holds what the cluster gave it.
_HOLDING = (SightState.STARTING, SightState.RUNNING)


def holds_something(sighting: Sighting) -> bool:
    return any(rank.state in _HOLDING for rank in sighting.ranks)


def placement_cost(placement: Placement, now: float) -> float | None:
    """In dollars, so far; None where the price is not known."""
    if placement.price_per_hour is None:
        return None
    if placement.held_at is None:
        return 0.0
    until = now if placement.closed_at is None else placement.closed_at
    return placement.price_per_hour * max(0.0, until - placement.held_at) / 3600


def closed(tx: Tx, placement: Placement, now: float) -> Placement:
    """The placement as it is when nothing of it is left; its run has paid for it."""
    held_at = _first_held(tx, placement) if placement.held_at is None else placement.held_at
    placement = placement._replace(state=PlacementState.CLOSED, closed_at=now, sealed=None, held_at=held_at)
    run, cost = tx.runs.lock(placement.run_id), placement_cost(placement, now)
    if run is not None and cost and not _is_unknown(run):
        tx.runs.save(run._replace(cost=(run.cost or 0.0) + cost))
    return placement


def _first_held(tx: Tx, placement: Placement) -> float | None:
    """One that ended before anybody looked had workers if they took the run."""
    begun = [attempt.opened_at for attempt in tx.attempts.of_run(placement.run_id)]
    return min((at for at in begun if at >= placement.created_at), default=None)


def run_cost(tx: Tx, run: Run, live: Sequence[Lease], now: float) -> float | None:
    """What a run has cost so far, on hosts and for what executors hold for it; None if a part is unknown."""
    cost = cost_so_far(run, live)
    if run.state is not RunState.PLACING and cost is None:
        return None
    if cost is None and _is_unknown(run):
        return None
    still = [one for one in tx.placements.of_run(run.id) if one.state is not PlacementState.CLOSED]
    costs = [placement_cost(one, now) for one in still if one.held_at is not None]
    if None in costs:
        return None
    return cost if not costs else (cost or 0.0) + sum(one for one in costs if one is not None)


def _is_unknown(run: Run) -> bool:
    return run.cost is None and run.ran_s > 0
