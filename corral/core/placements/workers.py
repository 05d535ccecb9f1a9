"""Which workers of a run its placements still bring, and which are gone for good.

The workers of a run are numbered as its tokens are. A first placement brings all of them; one that replaces
workers brings those that were lost, in the order of their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from corral.domain.placements.orders import SightState
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


def _left(placement: Placement, made: list[str]) -> Iterator[int]:
    own = [name for name in made if name.startswith(f"{placement.launch_key}-")]
    seen = json.loads(placement.seen or "{}").get("ranks", ())
    over = {one["rank"] for one in seen if one["state"] in _OVER}
    for rank, name in enumerate(own):
        if rank not in over:
            yield int(name.rpartition("-")[2])
