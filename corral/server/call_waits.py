"""What a call that has not begun is waiting for, in words for whoever waits."""

from __future__ import annotations

import json

from corral.domain.calls import PREPARING, CallRecord, CallState
from corral.domain.endpoints import Instance
from corral.domain.states import RunState
from corral.store.transaction import Tx


def waits_for(tx: Tx, call: CallRecord, now: float) -> str | None:
    """None for a call that has begun or ended."""
    if call.state is not CallState.QUEUED:
        return None
    if call.ready_at > now:
        return f"its next try, in {call.ready_at - now:.1f} s"
    endpoint = tx.endpoints.get(call.endpoint_id)
    if endpoint is None:
        return None
    number = call.version or endpoint.current
    mine = [
        one
        for one in tx.endpoints.instances(call.endpoint_id)
        if (one.version, one.pool) == (number, call.pool)
    ]
    if any(one.ready_at is not None for one in mine):
        return "an instance that is free"
    said = [text for one in mine if (text := _of_instance(tx, one)) is not None]
    return said[0] if said else "an instance, which is about to be made"


def _of_instance(tx: Tx, instance: Instance) -> str | None:
    run = tx.runs.get(instance.run_id)
    if run is None:
        return None
    if run.state is not RunState.RUNNING:
        return f"a host for its instance; `corral why {run.id}` says which hosts fit"
    for lease in tx.leases.live_of_run(run.id):
        host = tx.hosts.get(lease.host_id)
        doing = json.loads(lease.progress).get(PREPARING) or "starting"
        return f"its instance {run.id} on {host.name if host else lease.host_id}: {doing}"
    return None
