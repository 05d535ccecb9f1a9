"""The exchange with an instance: it reports its calls and is assigned new ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from corral.core.calls.context import CallContext
from corral.core.calls.dispatch import REFILL, InstancePoll
from corral.core.calls.settle import add_chunks, settle, take_back
from corral.core.endpoints.deploy import became_ready
from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.wakeups import wait_for
from corral.domain.calls import (
    CALL_FINAL,
    CallOutcome,
    CallPool,
    CallRecord,
    CallState,
    ChunkBatch,
    QueuedCall,
)
from corral.domain.endpoints import ServingVersion, VersionState
from corral.domain.errors import LeaseLost
from corral.domain.ids import CallId, HostId, LeaseId, RunId
from corral.domain.leases import LeaseKey, LeaseState
from corral.store.transaction import Tx

log = logging.getLogger("corral.calls")
# An assignment is written down after this long, unless the call has ended.
_WRITE_AFTER_S = 0.05
# A call that its instance still does not know after this long was assigned in an answer that was lost.
LOST_AFTER_S = 30.0
# An instance that may be idle is looked at no more often than this.
_LOOK_S = 0.05


class InstanceReport(NamedTuple):
    """`holding` are the calls that the instance has begun, `want` is how many more it can take."""

    lease_id: LeaseId
    epoch: int
    host_id: HostId
    outcomes: Sequence[CallOutcome]
    chunks: Sequence[ChunkBatch]
    holding: Sequence[str]
    want: int
    wait_s: float


class InstanceOrders(NamedTuple):
    """`cancelled` are calls that the instance need not finish; `stop` asks it to end."""

    calls: Sequence[CallRecord]
    cancelled: Sequence[str]
    stop: bool


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
        """Nothing more once an endpoint changed since `changes`: an old version takes no calls of a new one.

        Calls in the queue that turn out to have ended are skipped: who wants calls gets those behind them.
        """
        dispatch = self._dispatch
        pools = instance.pools
        calls: list[CallRecord] = []
        while len(calls) < want and dispatch.may_have_calls(pools):
            for pool in dispatch.to_fill(pools):
                dispatch.fill(pool, await self._store.read(partial(_queued, pool)))
            if changes != dispatch.changes:
                break
            taken = dispatch.take(lease_id, pools, want - len(calls))
            if not taken:
                break
            calls += await self._assign_or_release(taken, lease_id, instance.run_id)
        return calls

    async def _assign_or_release(
        self, taken: list[CallId], lease_id: LeaseId, run_id: RunId
    ) -> list[CallRecord]:
        assigned: set[CallId] = set()
        try:
            calls = await self._assign(taken, lease_id, run_id)
            assigned = {call.id for call in calls}
            return calls
        finally:
            for call_id in taken:
                if call_id not in assigned:
                    self._dispatch.release(call_id)

    async def _assign(self, ids: list[CallId], lease_id: LeaseId, run_id: RunId) -> list[CallRecord]:
        """Those of the calls that are still queued."""
        dispatch, store = self._dispatch, self._store
        # Another server may have changed what is remembered here.
        unknown = [one for one in ids if not store.alone or dispatch.recent(one) is None]
        found = await store.read(lambda tx: tx.calls.many(unknown)) if unknown else []
        dispatch.remember(call for call in found if call.state is CallState.QUEUED)
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


class CallExchange:
    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._dispatch = context.dispatch
        self._assigner = CallAssigner(context)

    async def exchange(self, report: InstanceReport, gone: Callable[[], Awaitable[bool]]) -> InstanceOrders:
        """Keep what the instance reports, and assign it calls: at once, or within `wait_s`."""
        dispatch, lease_id = self._dispatch, report.lease_id
        changes = dispatch.changes
        changed: list[CallRecord] = []
        settled = [outcome.call_id for outcome in report.outcomes]
        dispatch.drop_unwritten(settled)
        instance, cancelled = await self._context.store.write(lambda tx: self._keep(tx, report, changed))
        dispatch.serves(lease_id, instance.pools[0])
        dispatch.settled(lease_id, settled)
        ended = [call for call in changed if call.state in CALL_FINAL]
        self._context.results.ended(ended)
        for call in ended:
            dispatch.forget(call.id)
        dispatch.queue_again(call for call in changed if call.state is CallState.QUEUED)
        if ended:
            # Whoever waits for them comes first.
            await asyncio.sleep(0)
        calls = await self._assigner.next_calls(lease_id, instance, report.want, changes=changes)
        if not calls and report.want and report.wait_s and not cancelled and instance.is_current:
            calls = await self._wait_for_calls(report, instance, changes, gone)
        stop = not calls and (
            not instance.is_current or (not report.holding and self._may_end(lease_id, instance))
        )
        return InstanceOrders(calls, cancelled, stop)

    def _keep(
        self, tx: Tx, report: InstanceReport, changed: list[CallRecord]
    ) -> tuple[ServingVersion, list[str]]:
        """`changed` are the calls that ended or are queued again; the second answer are those to cancel."""
        now, lease_id = self._context.clock.now(), report.lease_id
        instance = check_lease(tx, report, now=now, policy=self._context.policy)
        streamed = [add_chunks(tx, batch, lease_id, now=now) for batch in report.chunks]
        changed[:] = [call for call in streamed if call is not None and call.state in CALL_FINAL]
        changed += settle(tx, lease_id, instance.run_id, instance.endpoint_id, report.outcomes, now=now)
        if report.want and self._dispatch.is_time_to_compare(lease_id, LOST_AFTER_S / 10):
            held = {*report.holding, *(outcome.call_id for outcome in report.outcomes)}
            changed += take_back(tx, lease_id, held, before=now - LOST_AFTER_S, now=now)
        if instance.state is VersionState.ROLLING:
            became_ready(tx, instance.endpoint_id, instance.version, now=now)
        return instance, self._over(tx, lease_id, report.holding) if report.holding else []

    def _over(self, tx: Tx, lease_id: LeaseId, holding: Sequence[str]) -> list[str]:
        """Calls that have ended; and, where calls begin early, those whose acceptance failed."""
        if not self._context.store.alone:
            return [call.id for call in tx.calls.ended([CallId(one) for one in holding])]
        ids = self._dispatch.doubtful(lease_id, holding)
        found = tx.calls.many([CallId(one) for one in ids]) if ids else []
        states = {str(call.id): call.state for call in found}
        return [one for one in ids if one not in states or states[one] in CALL_FINAL]

    def _may_end(self, lease_id: LeaseId, instance: ServingVersion) -> bool:
        """Whether it was idle for long enough, and is not one of those that are always there."""
        dispatch, endpoint_id = self._dispatch, instance.endpoint_id
        if dispatch.is_sent_away(lease_id):
            return dispatch.is_idle(lease_id, 0.0)
        rule = self._context.endpoints.rule(endpoint_id)
        if not instance.pool and dispatch.instances(endpoint_id) <= rule.min:
            return False
        return dispatch.is_idle(lease_id, rule.idle_s)

    async def _wait_for_calls(
        self,
        report: InstanceReport,
        instance: ServingVersion,
        changes: int,
        gone: Callable[[], Awaitable[bool]],
    ) -> list[CallRecord]:
        context, dispatch, lease_id = self._context, self._dispatch, report.lease_id
        deadline = context.clock.monotonic() + report.wait_s
        poll = InstancePoll(lease_id, instance.pools)
        try:
            while True:
                dispatch.join(poll)
                if await gone():
                    return []
                calls = await self._assigner.next_calls(lease_id, instance, report.want, changes=changes)
                left = deadline - context.clock.monotonic()
                over = changes != dispatch.changes or dispatch.is_sent_away(lease_id)
                if not report.holding:
                    over = over or self._may_end(lease_id, instance)
                if calls or left <= 0 or context.wakeups.closing or over:
                    return calls
                # An instance that may end is told so in time, and not when it would ask again.
                idle_s = context.endpoints.rule(instance.endpoint_id).idle_s
                idle_in_s = dispatch.idle_in_s(lease_id, idle_s)
                look = not report.holding and 0 < idle_in_s < left
                if not await wait_for(poll.woken, max(idle_in_s, _LOOK_S) if look else left) and not look:
                    return []
        finally:
            dispatch.leave(poll)


def check_lease(tx: Tx, report: InstanceReport, *, now: float, policy: ServerPolicy) -> ServingVersion:
    """The instance that the lease is for. LeaseLost if its reports do not count any more."""
    lease_id = report.lease_id
    instance = tx.endpoints.serving(lease_id)
    live = (report.host_id, report.epoch, LeaseState.LIVE)
    if instance is None or (instance.host_id, instance.epoch, instance.lease_state) != live:
        # The fence may renew the lease, or says why it is lost.
        _, run = fence(tx, LeaseKey(lease_id, report.epoch, report.host_id), now=now, policy=policy)
        instance = tx.endpoints.serving(lease_id)
        if instance is None:
            raise LeaseLost(f"run {run.id} serves no endpoint, or its endpoint is gone")
    if instance.ready_at is None and (stored := tx.endpoints.instance(instance.run_id)) is not None:
        tx.endpoints.save_instance(stored._replace(ready_at=now))
    return instance


def _queued(pool: CallPool, tx: Tx) -> list[QueuedCall]:
    return tx.calls.waiting(pool, after=None, limit=REFILL)
