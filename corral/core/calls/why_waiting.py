"""What a queued call waits for, in words."""

from __future__ import annotations

import json
from collections.abc import Callable

from corral.core.endpoints.failed_starts import FailedStarts
from corral.core.hosts.names import host_name
from corral.core.placements.wanted import need_of
from corral.core.placements.why import placement_summary
from corral.domain.calls import PREPARING, CallPool, CallRecord, CallState
from corral.domain.endpoints import Instance
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx

# Why no host can take a run, in words; None if one may.
WhyNowhere = Callable[[Run], str | None]


def why_waiting(
    tx: Tx, call: CallRecord, now: float, starts: FailedStarts, nowhere: WhyNowhere
) -> str | None:
    """None for a call that has begun or ended."""
    if call.state is not CallState.QUEUED:
        return None
    if call.ready_at > now:
        return f"its next try, in {call.ready_at - now:.1f} s"
    endpoint = tx.endpoints.get(call.endpoint_id)
    if endpoint is None:
        return None
    place = (call.version or endpoint.current, call.pool)
    instances = tx.endpoints.instances(call.endpoint_id)
    mine = [one for one in instances if (one.version, one.pool) == place]
    if any(one.ready_at is not None for one in mine):
        return "an instance that is free"
    failed = starts.last(CallPool(endpoint.id, *place))
    if failed is not None:
        return f"its instance, which failed to start {failed.times} times: {failed.why.splitlines()[0]}"
    found = (text for one in mine if (text := _state_of(tx, one, nowhere, now)) is not None)
    return next(found, "an instance, which is about to be made")


def _state_of(tx: Tx, instance: Instance, nowhere: WhyNowhere, now: float) -> str | None:
    run = tx.runs.get(instance.run_id)
    if run is None:
        return None
    if (asked := placement_summary(tx, run, need_of(tx, run), now=now)) is not None:
        return f"a worker for its instance {run.id}; {asked}"
    if run.state is not RunState.RUNNING and (lacking := nowhere(run)) is not None:
        return f"a host for its instance; {lacking}"
    if run.state is not RunState.RUNNING:
        return f"a host for its instance; `corral why {run.id}` says which hosts fit"
    for lease in tx.leases.live_of_run(run.id):
        doing = json.loads(lease.progress).get(PREPARING) or "starting"
        return f"its instance {run.id} on {host_name(tx, lease.host_id)}: {doing}"
    return None
