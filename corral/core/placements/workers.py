"""Which workers of a run its placements still bring, and which are gone for good.

The workers of a run are numbered as its tokens are. A first placement brings all of them; one that replaces
workers brings those that were lost, in the order of their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from corral.core.hosts.names import run_host_name
from corral.domain.leases import Lease
from corral.domain.placements.orders import SightCause, SightState
from corral.domain.placements.placements import Placement, PlacementState
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

# A worker that is in one of these does not come back by itself.
_OVER = frozenset({SightState.SUCCEEDED, SightState.FAILED, SightState.GONE})
_SERVING = (PlacementState.INTENDED, PlacementState.LAUNCHED)


def token_name(placement_key: str, number: int) -> str:
    return f"{placement_key}-{number:04d}"


def serving(tx: Tx, run: Run) -> set[int]:
    """The workers that are there or may still come, as far as the executors have told."""
    made = [token.name for token in tx.tokens.made_for(run.id)]
    return {
        number
        for placement in tx.placements.of_run(run.id)
        if placement.state in _SERVING
        for number in _left(placement, made)
    }


def killed_for_memory(tx: Tx, run: Run, lease: Lease) -> str | None:
    """Why the worker that had the lease can report nothing, where its cluster killed workers of the run for
    want of memory; None if it is no such worker, or the cluster does not say so."""
    host = tx.hosts.get(lease.host_id)
    if host is None or not host.name.startswith(run_host_name(run.id)):
        return None
    newest = max(tx.placements.of_run(run.id), key=lambda one: one.created_at, default=None)
    if newest is None or not newest.lost:
        return None
    ranks = json.loads(newest.seen or "{}").get("ranks", ())
    if not any(one["cause"] == SightCause.OUT_OF_MEMORY for one in ranks):
        return None
    return f"executor {newest.executor}: {newest.why}"


def _left(placement: Placement, made: list[str]) -> Iterator[int]:
    own = [name for name in made if name.startswith(f"{placement.launch_key}-")]
    seen = json.loads(placement.seen or "{}").get("ranks", ())
    over = {one["rank"] for one in seen if one["state"] in _OVER}
    for rank, name in enumerate(own):
        if rank not in over:
            yield int(name.rpartition("-")[2])
