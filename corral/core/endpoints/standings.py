"""Where the instances of an endpoint are: on which host, or through which executor."""

from __future__ import annotations

import json
from typing import NamedTuple

from corral.domain.endpoints import Instance
from corral.domain.ids import EndpointId
from corral.domain.placements.placements import Placement, PlacementState
from corral.domain.runs.states import LEASED, RunState
from corral.store.transaction import Tx

# Of an endpoint with more, the oldest ones are told.
MOST_TOLD = 100


class InstanceStanding(NamedTuple):
    """`state` is that of its run. `executor` is who brought up its worker, or is asked to; `node` is where
    the cluster says that the worker is."""

    run: str
    version: int
    state: RunState
    ready: bool
    host: str | None
    executor: str | None
    node: str | None


def instance_standings(tx: Tx, endpoint_id: EndpointId) -> list[InstanceStanding]:
    instances = sorted(tx.endpoints.instances(endpoint_id), key=lambda one: (one.created_at, one.run_id))
    return [found for one in instances[:MOST_TOLD] if (found := _standing(tx, one)) is not None]


def _standing(tx: Tx, instance: Instance) -> InstanceStanding | None:
    run = tx.runs.get(instance.run_id)
    if run is None:
        return None
    is_leased = run.state in LEASED
    host = tx.hosts.get(run.last_host) if is_leased and run.last_host is not None else None
    placement = next(
        (one for one in tx.placements.of_run(run.id) if one.state is not PlacementState.CLOSED), None
    )
    return InstanceStanding(
        run=run.id,
        version=instance.version,
        state=run.state,
        ready=instance.ready_at is not None,
        host=None if host is None else host.name,
        executor=None if placement is None else placement.executor,
        node=None if placement is None else _node(placement),
    )


def _node(placement: Placement) -> str | None:
    ranks = json.loads(placement.seen or "{}").get("ranks") or ()
    return next((rank["node"] for rank in ranks if rank.get("node")), None)
