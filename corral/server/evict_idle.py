"""Instances that nobody calls give way to what waits for their place, the longest unused first."""

from __future__ import annotations

from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.roster import takes_work
from corral.domain.ids import LeaseId, RunId
from corral.domain.queue import Lane
from corral.server.endpoint_cache import scaling_of
from corral.server.services import Services
from corral.store.transaction import Tx

# A run that has waited this long waits for a place, not for the next poll of a host.
WAITED_S = 0.3
# An instance without a call for this long is not in use.
UNUSED_S = 1.0
# What was ended for a run is given so long to end.
PATIENCE_S = 10.0


class IdleEviction:
    def __init__(self, services: Services) -> None:
        self._svc = services
        self._made_for: dict[RunId, float] = {}

    async def look(self) -> None:
        unused = self._svc.dispatch.unused(UNUSED_S)
        if unused:
            for lease_id in await self._svc.store.read(lambda tx: self._in_the_way(tx, unused)):
                self._svc.dispatch.send_away(lease_id)

    def _in_the_way(self, tx: Tx, unused: list[LeaseId]) -> list[LeaseId]:
        now = self._svc.clock.now()
        self._made_for = {run: at for run, at in self._made_for.items() if 0 <= now - at < PATIENCE_S}
        found: list[LeaseId] = []
        for lane, ready in tx.runs.heads():
            if now - ready.ready_at < WAITED_S or ready.id in self._made_for:
                continue
            for lease_id in unused:
                if lease_id not in found and self._helps(tx, lease_id, lane, now):
                    found.append(lease_id)
                    self._made_for[ready.id] = now
                    break
        return found

    def _helps(self, tx: Tx, lease_id: LeaseId, lane: Lane, now: float) -> bool:
        """Whether the run could start on the lease's host if it ended, and cannot now."""
        lease = tx.leases.get(lease_id)
        host = None if lease is None else tx.hosts.get(lease.host_id)
        if lease is None or host is None or not takes_work(host, now) or self._must_stay(tx, lease.run_id):
            return False
        shapes = self._svc.board.shapes
        if not shapes.fits(tx, lane.shape, host) or not shapes.admits(tx, lane.shape, lane.project, host):
            return False
        need = shapes.get(tx, lane.shape)
        held = tx.leases.held(host.id)
        free = HostCapacity(host, held)
        if free.slots > 0 and free.holds(need):
            return False
        without = HostCapacity(host, [one for one in held if one.lease_id != lease_id])
        return without.slots > 0 and without.holds(need)

    def _must_stay(self, tx: Tx, run_id: RunId) -> bool:
        """Whether it is one of those that are to be kept warm."""
        instance = tx.endpoints.instance(run_id)
        endpoint = None if instance is None else tx.endpoints.get(instance.endpoint_id)
        if instance is None or endpoint is None:
            return True
        return len(tx.endpoints.instances(endpoint.id)) <= scaling_of(endpoint).min
