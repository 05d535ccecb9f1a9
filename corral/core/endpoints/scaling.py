"""Keeps the instances of endpoints: starts them where calls wait, and clears up after those that ended."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from corral.core.calls.context import CallContext
from corral.core.calls.settle import lose
from corral.core.calls.transitions import cancel, expire, fail, forget
from corral.core.endpoints.deploy import LIVE_FOR_S, broke, starts_unasked
from corral.core.endpoints.evict_idle import IdleEviction
from corral.core.endpoints.load import EndpointLoad, desired
from corral.core.placements.executors import unknown_executors
from corral.core.queue.board import Board
from corral.core.runs.cancel import cancel as cancel_run
from corral.core.runs.submit import NewRun, submit
from corral.core.wakeups import SCALE, wait_for
from corral.domain.calls import CallFilter, CallPool, CallRecord, CallState
from corral.domain.endpoints import Endpoint, EndpointVersion, Instance, PoolParams, ScalingRule, VersionState
from corral.domain.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.domain.ids import EndpointId, RunId
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL, RunState
from corral.store.transaction import Tx

log = logging.getLogger("corral.scaling")
PAGE = 200
EVERY_S = 0.5
ACTOR = "corral"
# An instance that no call waits for is not needed if it was made longer ago than this.
SURE_AFTER_S = 2.0
# A version is broken when this many of its instances ended before they were ready.
MOST_BROKEN = 2
# Calls fail when so many instances in a row could not begin for them, though their version has served.
MOST_FAILED = 3
_OF_CODE = ("code_error", "bad_data")
# No worker has it yet: it waits for a host, or for what an executor was asked to bring up.
_NOT_BEGUN = (RunState.QUEUED, RunState.PLACING, RunState.HELD)

# The run of a new instance: of which version and endpoint, and the pool it serves.
InstanceRun = Callable[[EndpointVersion, Endpoint, str, PoolParams | None], NewRun]


class InstancePlace(NamedTuple):
    """The version and the pool that an instance serves."""

    version: int
    pool: str


class Scaler:
    def __init__(self, context: CallContext, board: Board, instance_run: InstanceRun) -> None:
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._dispatch = context.dispatch
        self._instance_run = instance_run
        self._was_ready: set[tuple[EndpointId, int]] = set()
        self._eviction = IdleEviction(context, board)

    async def forever(self) -> None:
        """A round whenever something changed, and now and then in any case."""
        wakeups = self._context.wakeups
        # A server that ends wakes everybody at once and for good.
        while not wakeups.closing:
            with wakeups.watch(SCALE) as changed:
                try:
                    if await self._store.lead("scaler"):
                        await self.look()
                except Exception:
                    log.exception("the scaler failed; it goes on")
                await wait_for(changed, EVERY_S)

    async def look(self) -> None:
        """One round: lost calls are queued again, ended instances forgotten, missing ones made."""
        await self._requeue_lost()
        await self._expire()
        after: EndpointId | None = None
        while True:
            page = await self._store.read(partial(_page, after))
            for endpoint in page:
                self._context.endpoints.learn(endpoint)
                await self._keep(endpoint)
            if len(page) < PAGE:
                break
            after = page[-1].id
        await self._eviction.look()

    async def _requeue_lost(self) -> None:
        for call_id in await self._store.read(lambda tx: tx.calls.orphans(PAGE)):
            call = await self._store.write(partial(lose, call_id=call_id, now=self._clock.now()))
            self._dispatch.release(call_id)
            if call is not None and call.state is CallState.QUEUED:
                self._dispatch.queue_again([call])
            elif call is not None:
                self._context.results.ended([call])

    async def _expire(self) -> None:
        now = self._clock.now()
        for call_id in await self._store.read(lambda tx: tx.calls.due(now, PAGE)):
            await self._store.write(partial(expire, call_id=call_id, now=now))
        for call_id in await self._store.read(lambda tx: tx.calls.forgettable(now, PAGE)):
            await self._store.write(partial(forget, call_id=call_id, now=now))
            self._context.results.forget(call_id)

    async def _keep(self, endpoint: Endpoint) -> None:
        instances = await self._clear_up(endpoint)
        abandoned = await self._store.read(lambda tx: self._is_abandoned(tx, endpoint))
        if endpoint.stopped or abandoned:
            why = "the endpoint is removed" if abandoned else "the endpoint is stopped"
            for instance in instances:
                await self._end(instance.run_id, why)
            if abandoned and not instances:
                await self._remove(endpoint)
            return
        for place in await self._store.read(lambda tx: self._missing(tx, endpoint, instances)):
            await self._make(endpoint, place)
        for run_id in await self._store.read(lambda tx: self._unneeded(tx, endpoint, instances)):
            await self._end(run_id, "no call waits for it any more")

    def _is_abandoned(self, tx: Tx, endpoint: Endpoint) -> bool:
        """Nobody called it for long, and none of its calls waits or runs; or it is to be removed."""
        if not endpoint.live or self._clock.now() - endpoint.called_at <= LIVE_FOR_S:
            return False
        return endpoint.stopped or not tx.calls.counts(endpoint.id)

    async def _clear_up(self, endpoint: Endpoint) -> list[Instance]:
        """Forget instances whose runs have ended. A version whose instances never become ready is broken."""

        def unit(tx: Tx) -> list[tuple[Instance, Run | None]]:
            return [(one, tx.runs.get(one.run_id)) for one in tx.endpoints.instances(endpoint.id)]

        found = await self._store.read(unit)
        for one in (one for one, _ in found if one.ready_at is not None):
            self._was_ready.add((endpoint.id, one.version))
            self._context.starts.started(CallPool(endpoint.id, one.version, one.pool))
        living = []
        for instance, run in found:
            if run is not None and run.state not in FINAL:
                living.append(instance)
                continue
            await self._store.write(partial(_forget_instance, instance.run_id))
            if instance.ready_at is None and run is not None and run.state == "failed":
                await self._blame(endpoint, instance, run)
        return living

    async def _blame(self, endpoint: Endpoint, instance: Instance, run: Run) -> None:
        """The next try waits. Where the code itself fails again and again, the calls that wait fail."""
        place = CallPool(endpoint.id, instance.version, instance.pool)
        why = f"{run.id}: {run.reason}: {run.detail or ''}".strip()
        times = self._context.starts.failed(place, run.detail or str(run.reason))
        if (endpoint.id, instance.version) in self._was_ready:
            # The version has served before, so where its code is not to blame the host is: another is tried.
            if run.reason not in _OF_CODE or times < MOST_FAILED:
                return
        elif times < MOST_BROKEN and run.reason not in (*_OF_CODE, "environment"):
            return
        elif not instance.pool:
            await self._store.write(lambda tx: broke(tx, endpoint.id, instance.version, why))
        # Other parameters of the class may be good.
        await self._fail_waiting(_pools_of(endpoint, InstancePlace(instance.version, instance.pool)), why)
        self._context.starts.try_at_once(place)

    async def _fail_waiting(self, pools: list[CallPool], why: str) -> None:
        """No instance will ever take these calls."""

        def unit(tx: Tx) -> list[CallRecord]:
            places = [place for pool in pools for place in tx.calls.waiting(pool, after=None, limit=PAGE)]
            calls = [tx.calls.lock(place.id) for place in places]
            return [
                fail(tx, call, "CannotStart", why, now=self._clock.now())
                for call in calls
                if call is not None and call.state is CallState.QUEUED
            ]

        while ended := await self._store.write(unit):
            self._context.results.ended(ended)

    def _missing(self, tx: Tx, endpoint: Endpoint, instances: list[Instance]) -> list[InstancePlace]:
        wanted: list[InstancePlace] = []
        above = 0
        for place in sorted(self._places(tx, endpoint)):
            version = tx.endpoints.version(endpoint.id, place.version)
            if version is None or version.state is VersionState.BROKEN:
                continue
            if not self._context.starts.may_try(CallPool(endpoint.id, *place)):
                continue
            mine = [one for one in instances if (one.version, one.pool) == place]
            load = self._load(endpoint, place, mine)
            blocked = self._blocked_above(tx, endpoint, place) if load.waiting and mine else 0
            above = max(above, blocked)
            rule = _rule(endpoint, place)
            count = desired(load, replace(rule, max=rule.max + blocked)) - len(mine)
            if starts_unasked(endpoint, version) and not mine:
                count = max(count, 1)
            wanted += [place] * max(0, count)
        room = max(0, endpoint.rule.max + above - len(instances))
        # A new version may start beside the old one even where there is room for one alone.
        rolling = [one for one in wanted if one.version != endpoint.current][:1]
        rest = [one for one in wanted if one.version == endpoint.current]
        if len(rest) > room:
            # Instances that are always kept have no parameters.
            always = {""} if endpoint.rule.min else set()
            busy = {one.pool for one in rest} | always
            self._dispatch.make_room(endpoint.id, len(rest) - room, but=busy)
        return [*rolling, *rest[:room]]

    def _unneeded(self, tx: Tx, endpoint: Endpoint, instances: list[Instance]) -> list[RunId]:
        """Instances that no host has taken and no call waits for: later they would take others' places."""
        before = self._clock.now() - SURE_AFTER_S
        found: list[RunId] = []
        for one in instances:
            if one.ready_at is not None or one.created_at > before:
                continue
            run = tx.runs.get(one.run_id)
            version = tx.endpoints.version(endpoint.id, one.version)
            if run is None or run.state not in _NOT_BEGUN or version is None:
                continue
            place = InstancePlace(one.version, one.pool)
            left = sum((other.version, other.pool) == place for other in instances) - len(found)
            if not self._is_needed(tx, endpoint, version, place, others=left - 1):
                found.append(one.run_id)
        return found

    def _is_needed(
        self, tx: Tx, endpoint: Endpoint, version: EndpointVersion, place: InstancePlace, *, others: int
    ) -> bool:
        """Whether somebody waits for an instance beside `others`, or it is one that is there without calls.

        The database says so: the queue in memory may hold calls that ended unheard.
        """
        if starts_unasked(endpoint, version) or others < _rule(endpoint, place).min:
            return True
        if endpoint.rule.per_instance is not None and self._dispatch.running(endpoint.id):
            return True
        return _someone_waits(tx, endpoint, place)

    def _blocked_above(self, tx: Tx, endpoint: Endpoint, place: InstancePlace) -> int:
        """How many running calls of this endpoint wait for the first call in the queue to end.

        Each of them keeps an instance busy: without one more they would wait for ever.
        """
        most = 0
        for pool in _pools_of(endpoint, place):
            first = self._dispatch.first(pool)
            call = None if first is None else tx.calls.get(first.id)
            blocked = 0
            while call is not None and call.parent_id is not None:
                call = tx.calls.get(call.parent_id)
                blocked += call is not None and call.endpoint_id == endpoint.id and call.ended_at is None
            most = max(most, blocked)
        return most

    def _places(self, tx: Tx, endpoint: Endpoint) -> set[InstancePlace]:
        """Where an instance may be missing."""
        found = {
            InstancePlace(pool.version or endpoint.current, pool.key)
            for pool in self._dispatch.pools(endpoint.id)
            if pool.version or endpoint.current
        }
        if endpoint.current and endpoint.rule.min:
            found.add(InstancePlace(endpoint.current, ""))
        versions = tx.endpoints.versions(endpoint.id)
        rolling = {InstancePlace(one.version, "") for one in versions if starts_unasked(endpoint, one)}
        return found | rolling

    def _load(self, endpoint: Endpoint, place: InstancePlace, mine: list[Instance]) -> EndpointLoad:
        pools = _pools_of(endpoint, place)
        now = self._clock.now()
        waited = [now - first.ready_at for pool in pools if (first := self._dispatch.first(pool)) is not None]
        return EndpointLoad(
            waiting=sum(self._dispatch.depth(pool) for pool in pools),
            waited_s=max(waited, default=0.0),
            running=self._dispatch.running(endpoint.id),
            instances=len(mine),
            starting=sum(one.ready_at is None for one in mine),
        )

    async def _make(self, endpoint: Endpoint, place: InstancePlace) -> None:
        def unit(tx: Tx) -> bool:
            version = tx.endpoints.version(endpoint.id, place.version)
            if version is None:
                return False
            there = [one for one in tx.endpoints.instances(endpoint.id) if (one.version, one.pool) == place]
            if not self._is_needed(tx, endpoint, version, place, others=len(there)):
                return False
            params = tx.endpoints.pool(endpoint.id, place.pool) if place.pool else None
            run = self._instance_run(version, endpoint, place.pool, params)
            if (missing := unknown_executors(tx, run.requirements)) is not None:
                # Its executor was there when it was deployed, and may come back.
                raise Conflict(missing.message, hint=missing.hint)
            now = self._clock.now()
            made = submit(
                tx, [run], request_id=secrets.token_hex(16), group=None, principal=version.created_by, now=now
            )
            tx.endpoints.insert_instance(
                Instance(made.ids[0], endpoint.id, place.version, place.pool, None, now)
            )
            return True

        try:
            if not await self._store.write(unit):
                self._dispatch.read_again(_pools_of(endpoint, place))
        except CorralError as error:
            log.warning("no instance of %s can be made: %s", endpoint.name, error.message)
            why = error.message
            # Any other error, such as a quota or a database that is away, may pass.
            if isinstance(error, Conflict):
                self._context.starts.failed(CallPool(endpoint.id, *place), why)
            elif isinstance(error, InvalidInput | NotFound):
                await self._store.write(lambda tx: broke(tx, endpoint.id, place.version, why))

    async def _end(self, run_id: RunId, why: str) -> None:
        def unit(tx: Tx) -> None:
            run = tx.runs.get(run_id)
            if run is not None and run.state not in FINAL:
                policy = self._context.policy
                cancel_run(tx, run_id, reason=why, actor=ACTOR, now=self._clock.now(), policy=policy)

        await self._store.write(unit)

    async def _remove(self, endpoint: Endpoint) -> None:
        """Cancel its calls, then forget it, unless somebody called it since."""

        def cancel_calls(tx: Tx) -> list[CallRecord]:
            found = tx.endpoints.get(endpoint.id)
            if found is None or not found.stopped:
                return []
            filters = [CallFilter(endpoint_id=endpoint.id, state=state) for state in ("queued", "assigned")]
            return [
                cancel(tx, call.id, now=self._clock.now())
                for where in filters
                for call in tx.calls.page(where, after=None, limit=PAGE)
            ]

        def remove(tx: Tx) -> bool:
            found = tx.endpoints.lock(endpoint.id)
            if found is None or not self._is_abandoned(tx, found):
                return False
            tx.endpoints.delete(endpoint.id)
            return True

        while ended := await self._store.write(cancel_calls):
            self._context.results.ended(ended)
        if await self._store.write(remove):
            self._was_ready = {key for key in self._was_ready if key[0] != endpoint.id}
            self._context.starts.forget(endpoint.id)
            self._dispatch.drop_endpoint(endpoint.id)
            self._context.endpoints.forget(endpoint.id)


def _page(after: EndpointId | None, tx: Tx) -> list[Endpoint]:
    return tx.endpoints.page(None, after=after, limit=PAGE)


def _forget_instance(run_id: RunId, tx: Tx) -> None:
    tx.endpoints.delete_instance(run_id)


def _pools_of(endpoint: Endpoint, place: InstancePlace) -> list[CallPool]:
    """The pools whose calls an instance at this place takes."""
    numbers = [place.version, 0] if place.version == endpoint.current else [place.version]
    return [CallPool(endpoint.id, number, place.pool) for number in numbers]


def _someone_waits(tx: Tx, endpoint: Endpoint, place: InstancePlace) -> bool:
    return any(tx.calls.waiting(pool, after=None, limit=1) for pool in _pools_of(endpoint, place))


def _rule(endpoint: Endpoint, place: InstancePlace) -> ScalingRule:
    """Only the pool without parameters of the version that serves has instances without calls."""
    always = place == (endpoint.current, "")
    return endpoint.rule if always else replace(endpoint.rule, min=0)
