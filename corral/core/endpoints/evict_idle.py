"""Instances without calls give way to runs that wait for their place, the longest unused first."""

from __future__ import annotations

import json

from corral.core.calls.context import CallContext
from corral.core.queue.board import Board
from corral.core.queue.free_capacity import HostCapacity
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, LeaseId, RunId
from corral.domain.runs.queue import Lane
from corral.store.transaction import Tx

# A run that has waited this long waits for a place, not for the next poll of a host.
WAITED_S = 0.3
# An instance without a call for this long is not in use.
UNUSED_S = 1.0
MOST_HOSTS = 10_000
# How long an instance that is evicted for a run may take to end.
PATIENCE_S = 10.0


class IdleEviction:
    def __init__(self, context: CallContext, board: Board) -> None:
        self._context = context
        self._shapes = board.shapes
        self._shares = board.shares
        # When an instance was last evicted for a run.
        self._evicted_at: dict[RunId, float] = {}

    async def look(self) -> None:
        dispatch = self._context.dispatch
        if unused := dispatch.unused(UNUSED_S):
            for lease_id in await self._context.store.read(lambda tx: self._in_the_way(tx, unused)):
                dispatch.send_away(lease_id)

    def _in_the_way(self, tx: Tx, unused: list[LeaseId]) -> list[LeaseId]:
        now = self._context.clock.now()
        self._evicted_at = {run: at for run, at in self._evicted_at.items() if 0 <= now - at < PATIENCE_S}
        found = _too_many(tx, unused)
        for lane, ready in tx.runs.heads():
            if now - ready.ready_at < WAITED_S or ready.id in self._evicted_at:
                continue
            for lease_id in unused:
                if lease_id not in found and self._helps(tx, lease_id, lane, now):
                    found.append(lease_id)
                    self._evicted_at[ready.id] = now
                    break
        return found

    def _helps(self, tx: Tx, lease_id: LeaseId, lane: Lane, now: float) -> bool:
        """Whether the lane's run could start if the lease ended, and cannot now: for want of room on the
        lease's host, or because its project may run no more."""
        lease = tx.leases.get(lease_id)
        if lease is None or _must_stay(tx, lease.run_id):
            return False
        need = self._shapes.get(tx, lane.shape)
        gpus, ranks = need.gpus_together, need.ranks
        if self._shares.held_back(lane.project, gpus, ranks=ranks) is not None:
            # Free hosts do not help it; the end of one of its project's leases may.
            without = len(json.loads(lease.gpus))
            return (
                lease.project == lane.project
                and self._shares.held_back(lane.project, gpus, ranks=ranks, without_gpus=without) is None
                and any(
                    self._has_room(tx, lane, host, lease_id, now) for host in tx.hosts.page(None, MOST_HOSTS)
                )
            )
        host = tx.hosts.get(lease.host_id)
        return (
            host is not None
            # One that an executor brought up for the instance takes nothing else.
            and all(token.run_id is None for token in tx.tokens.of_host(host.id))
            and not self._has_room(tx, lane, host, None, now)
            and self._has_room(tx, lane, host, lease_id, now)
        )

    def _has_room(self, tx: Tx, lane: Lane, host: Host, without: LeaseId | None, now: float) -> bool:
        """Whether the host could take the lane's run now, if the lease `without` had ended."""
        shapes = self._shapes
        if not host.takes_work(now) or not shapes.fits(tx, lane.shape, host):
            return False
        if not shapes.admits(tx, lane.shape, lane.project, host):
            return False
        held = [one for one in tx.leases.held(host.id) if one.lease_id != without]
        return HostCapacity(host, held).fits(shapes.get(tx, lane.shape))


def _too_many(tx: Tx, unused: list[LeaseId]) -> list[LeaseId]:
    """Instances without calls on hosts that run more than they have slots.

    They were made while others lent their slots, which those have taken back.
    """
    found: list[LeaseId] = []
    left: dict[HostId, int] = {}
    for lease_id in unused:
        lease = tx.leases.get(lease_id)
        host = None if lease is None else tx.hosts.get(lease.host_id)
        if lease is None or host is None:
            continue
        if host.id not in left:
            left[host.id] = HostCapacity(host, tx.leases.held(host.id)).slots
        if left[host.id] < 0 and not _must_stay(tx, lease.run_id):
            left[host.id] += 1
            found.append(lease_id)
    return found


def _must_stay(tx: Tx, run_id: RunId) -> bool:
    """Whether it is one of the instances that are kept without calls."""
    instance = tx.endpoints.instance(run_id)
    endpoint = None if instance is None else tx.endpoints.get(instance.endpoint_id)
    return endpoint is None or len(tx.endpoints.instances(endpoint.id)) <= endpoint.rule.min
