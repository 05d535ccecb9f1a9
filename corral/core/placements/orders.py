"""What is ordered of an executor for one placement."""

from __future__ import annotations

import json
from dataclasses import dataclass

from corral.core.placements.place import Placing
from corral.domain.ids import PlacementId
from corral.domain.placements.orders import LaunchOrder
from corral.domain.placements.placements import ExecutorRecord
from corral.store.transaction import Tx

# A run's own limit ends it first, whatever the cluster takes to start its workers.
_SLACK_S = 600.0
# What each rank starts, where the executor's options do not say otherwise.
WORKER = ("python3", "-m", "corral.worker.placed")


@dataclass(frozen=True)
class OrderDesk:
    """`ca_pem` is what workers trust, where they need to be told. `shut_out` is why this server would let no
    such worker in."""

    placing: Placing
    ca_pem: str | None = None
    shut_out: str | None = None

    def order(self, tx: Tx, placement_id: PlacementId, executor: ExecutorRecord) -> LaunchOrder | None:
        """With the tokens that its workers have so far. None if the run is gone."""
        placement = tx.placements.get(placement_id)
        run = None if placement is None else tx.runs.get(placement.run_id)
        if placement is None or run is None:
            return None
        options = json.loads(executor.options)
        environ = {"CORRAL_URL": str(options["url"])}
        if self.ca_pem is not None:
            environ["CORRAL_PLACED_CA"] = self.ca_pem
        return LaunchOrder(
            key=placement.launch_key,
            installation=mark_of(tx),
            run_id=run.id,
            run_name=run.name,
            project=run.project,
            ranks=placement.ranks,
            # Workers that replace others join a run that goes on: each for itself.
            min_ranks=run.min_ranks if placement.ranks == run.world_size else 1,
            need=self.placing.board.shapes.get(tx, run.shape),
            command=tuple(options.get("command") or WORKER),
            environ=environ,
            tokens=self.placing.tokens(placement),
            limit_s=None if run.wall_limit_s is None else run.wall_limit_s + run.grace_s + _SLACK_S,
            grace_s=run.grace_s,
            image=options.get("image"),
        )


def mark_of(tx: Tx) -> str:
    """What everything that this installation makes is marked with."""
    installation = tx.installation.get()
    return "i-none" if installation is None else installation.id
