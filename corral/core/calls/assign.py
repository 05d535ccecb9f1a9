"""Assigning calls to an instance that asks for them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from corral.core.calls.context import CallContext
from corral.core.calls.dispatch import REFILL
from corral.domain.calls import CallPool, CallRecord, CallState, QueuedCall
from corral.domain.endpoints import ServingVersion
from corral.domain.ids import CallId, LeaseId, RunId
from corral.store.transaction import Tx

log = logging.getLogger("corral.calls")
# An assignment is written down after this long, unless the call has ended.
_WRITE_AFTER_S = 0.05


class CallAssigner:
    """Where this is the only server, most assignments are never written down: if the server dies, the call is
    still queued, and its outcome is kept all the same."""

    def __init__(self, context: CallContext) -> None:
        self._store = context.store
        self._clock = context.clock
        self._dispatch = context.dispatch
        self._writers: set[asyncio.Task[None]] = set()
        self._will_write = False

    async def next_calls(
        self, lease_id: LeaseId, instance: ServingVersion, want: int, *, changes: int
    ) -> list[CallRecord]:
        """Nothing if an endpoint changed since `changes`: an old version takes no calls of a new one."""
        dispatch = self._dispatch
        pools = instance.pools
        if not want or not dispatch.may_have_calls(pools):
            return []
        for pool in dispatch.to_fill(pools):
            dispatch.fill(pool, await self._store.read(partial(_queued, pool)))
        if changes != dispatch.changes:
            return []
        taken = dispatch.take(lease_id, pools, want)
        calls: list[CallRecord] = []
        try:
            if taken:
                calls = await self._assign(taken, lease_id, instance.run_id)
            return calls
        finally:
            assigned = {call.id for call in calls}
            for call_id in taken:
                if call_id not in assigned:
                    dispatch.release(call_id)

    async def _assign(self, ids: list[CallId], lease_id: LeaseId, run_id: RunId) -> list[CallRecord]:
        """Those of the calls that are still queued."""
        dispatch, store = self._dispatch, self._store
        # Another server may have changed what is remembered here.
        unknown = [one for one in ids if not store.alone or dispatch.recent(one) is None]
        found = await store.read(lambda tx: tx.calls.many(unknown)) if unknown else []
        dispatch.remember(found)
        read = {call.id: call for call in found}
        known = [read.get(one) or dispatch.recent(one) for one in ids]
        calls = [call for call in known if call is not None and call.state is CallState.QUEUED]
        if not store.alone:
            wanted, now = [call.id for call in calls], self._clock.now()
            written = await store.write(
                lambda tx: tx.calls.assign(wanted, lease_id=lease_id, run_id=run_id, now=now)
            )
            calls = [call for call in calls if call.id in set(written)]
        dispatch.assign(lease_id, run_id, [call.id for call in calls], written=not store.alone)
        if store.alone and not self._will_write:
            self._will_write = True
            writer = asyncio.create_task(self._write_later())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return calls

    async def _write_later(self) -> None:
        await asyncio.sleep(_WRITE_AFTER_S)
        self._will_write = False
        try:
            for (lease_id, run_id), ids in self._dispatch.unwritten().items():
                await self._store.write(partial(self._write, lease_id, run_id, ids))
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and the calls are still queued
            log.warning("assignments could not be written down: %s", error)

    def _write(self, lease_id: LeaseId, run_id: RunId, ids: list[CallId], tx: Tx) -> None:
        if left := self._dispatch.take_unwritten(lease_id, ids):
            tx.calls.assign(left, lease_id=lease_id, run_id=run_id, now=self._clock.now())


def _queued(pool: CallPool, tx: Tx) -> list[QueuedCall]:
    return tx.calls.waiting(pool, after=None, limit=REFILL)
