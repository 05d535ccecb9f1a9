"""Keeps the instances of endpoints: makes service runs where calls wait, clears up after those that ended."""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from corral.core.calls import lifecycle as core_calls
from corral.core.calls.lifecycle import cancel, lose
from corral.core.endpoints.deploy import LIVE_FOR_S, EndpointLoad, ScalingRule, broke, desired
from corral.core.runs.cancel import cancel as cancel_run
from corral.core.runs.submit import submit
from corral.core.wakeups import SCALE, wait_for
from corral.domain.calls import CallFilter, CallPool, CallRecord, CallState, Payload
from corral.domain.endpoints import Endpoint, EndpointVersion, Instance, PoolParams, VersionState
from corral.domain.errors import CorralError, InvalidInput, NotFound
from corral.domain.ids import EndpointId, RunId
from corral.domain.runs import Run
from corral.domain.states import FINAL, RunState
from corral.server.endpoint_cache import scaling_of
from corral.server.evict_idle import IdleEviction
from corral.server.new_runs import new_run
from corral.server.services import Services
from corral.store.transaction import Tx
from corral.wire.payloads import payload_table
from corral.wire.spec.run_file import RunSpec, ServiceTable

log = logging.getLogger("corral.server.scaling")
PAGE = 200
EVERY_S = 0.5
ACTOR = "corral"
# One that nobody waits for is not needed if it was made longer ago than this.
SURE_AFTER_S = 2.0
# A version of which this many instances ended before they were ready is broken.
MOST_BROKEN = 2


class WantedInstances(NamedTuple):
    """One more instance of a pool."""

    endpoint_id: EndpointId
    version: int
    pool: str


class Scaler:
    def __init__(self, services: Services) -> None:
        self._svc = services
        self._failed: Counter[tuple[EndpointId, int]] = Counter()
        self._was_ready: set[tuple[EndpointId, int]] = set()
        self._room = IdleEviction(services)

    async def forever(self) -> None:
        """A round whenever something changed, and now and then in any case."""
        # A server that ends wakes everybody at once and for good.
        while not self._svc.hub.closing:
            with self._svc.hub.watch(SCALE) as changed:
                try:
                    if await self._svc.store.lead("scaler"):
                        await self.look()
                except Exception:
                    log.exception("the scaler failed; it goes on")
                await wait_for(changed, EVERY_S)

    async def look(self) -> None:
        """One round: lost calls are queued again, ended instances forgotten, missing ones made."""
        svc = self._svc
        await self._requeue_lost()
        await self._expire()
        after: EndpointId | None = None
        while True:
            page = await svc.store.read(partial(_page, after))
            for endpoint in page:
                svc.book.learn(endpoint)
                await self._keep(endpoint)
            if len(page) < PAGE:
                break
            after = page[-1].id
        await self._room.look()

    async def _requeue_lost(self) -> None:
        svc = self._svc
        for call_id in await svc.store.read(lambda tx: tx.calls.orphans(PAGE)):
            call = await svc.store.write(partial(lose, call_id=call_id, now=svc.clock.now()))
            svc.dispatch.let_go(call_id)
            if call is not None and call.state is CallState.QUEUED:
                svc.dispatch.keep([call])
                svc.dispatch.heard(*core_calls.place_of(call))
            elif call is not None:
                svc.results.ended([call])

    async def _expire(self) -> None:
        svc = self._svc
        now = svc.clock.now()
        for call_id in await svc.store.read(lambda tx: tx.calls.due(now, PAGE)):
            await svc.store.write(partial(core_calls.expire, call_id=call_id, now=now))
        for call_id in await svc.store.read(lambda tx: tx.calls.forgettable(now, PAGE)):
            await svc.store.write(partial(core_calls.forget, call_id=call_id, now=now))
            svc.results.again(call_id)

    async def _keep(self, endpoint: Endpoint) -> None:
        svc = self._svc
        instances = await self._clear_up(endpoint)
        forsaken = await svc.store.read(lambda tx: self._is_forsaken(tx, endpoint))
        if endpoint.stopped or forsaken:
            for instance in instances:
                await self._end(
                    instance.run_id, "the endpoint is removed" if forsaken else "the endpoint is stopped"
                )
            if forsaken and not instances:
                await self._remove(endpoint.id)
            return
        for wanted in await svc.store.read(lambda tx: self._missing(tx, endpoint, instances)):
            await self._make(endpoint, wanted)
        for run_id in await svc.store.read(lambda tx: self._unneeded(tx, endpoint, instances)):
            await self._end(run_id, "no call waits for it any more")

    def _is_forsaken(self, tx: Tx, endpoint: Endpoint) -> bool:
        """Nobody called it for long, and nothing of it waits or runs; or it is to be removed."""
        if not endpoint.live or self._svc.clock.now() - endpoint.called_at <= LIVE_FOR_S:
            return False
        return endpoint.stopped or not tx.calls.counts(endpoint.id)

    async def _clear_up(self, endpoint: Endpoint) -> list[Instance]:
        """Forget instances whose runs have ended. A version whose instances never become ready is broken."""
        svc = self._svc

        def unit(tx: Tx) -> tuple[list[Instance], list[tuple[Instance, Run | None]]]:
            living, ended = [], []
            for instance in tx.endpoints.instances(endpoint.id):
                run = tx.runs.get(instance.run_id)
                if run is None or run.state in FINAL:
                    ended.append((instance, run))
                else:
                    living.append(instance)
            return living, ended

        living, ended = await svc.store.read(unit)
        for instance in [*living, *(one for one, _ in ended)]:
            if instance.ready_at is not None:
                self._was_ready.add((endpoint.id, instance.version))
        for instance, run in ended:
            await svc.store.write(partial(_forget_instance, instance.run_id))
            if instance.ready_at is None and run is not None and run.state == "failed":
                await self._blame(endpoint, instance, run)
        return living

    async def _blame(self, endpoint: Endpoint, instance: Instance, run: Run) -> None:
        key = (endpoint.id, instance.version)
        if key in self._was_ready:
            # It has served before: this is the host's trouble, and another is tried.
            return
        self._failed[key] += 1
        if self._failed[key] < MOST_BROKEN and run.reason not in ("code_error", "environment", "bad_data"):
            return
        why = f"{run.id}: {run.reason}: {run.detail or ''}".strip()
        await self._svc.store.write(lambda tx: broke(tx, endpoint.id, instance.version, why))
        await self._fail_waiting(endpoint, instance, why)

    async def _fail_waiting(self, endpoint: Endpoint, instance: Instance, why: str) -> None:
        """Nobody will ever take these: say so instead of letting them wait."""
        svc = self._svc

        def unit(tx: Tx) -> list[CallRecord]:
            numbers = [instance.version, *([0] if endpoint.current == instance.version else [])]
            ended = []
            for number in numbers:
                for waiting in tx.calls.waiting(
                    CallPool(endpoint.id, number, instance.pool), after=None, limit=PAGE
                ):
                    call = tx.calls.lock(waiting.id)
                    if call is not None and call.state is CallState.QUEUED:
                        ended.append(core_calls.cannot_run(tx, call, why, now=svc.clock.now()))
            return ended

        while ended := await svc.store.write(unit):
            svc.results.ended(ended)

    def _missing(self, tx: Tx, endpoint: Endpoint, instances: list[Instance]) -> list[WantedInstances]:
        wanted: list[WantedInstances] = []
        above = 0
        for number, pool in sorted(self._pools(tx, endpoint)):
            version = tx.endpoints.version(endpoint.id, number)
            if version is None or version.state is VersionState.BROKEN:
                continue
            mine = [one for one in instances if (one.version, one.pool) == (number, pool)]
            load = self._load(endpoint, number, pool, mine)
            held = self._held_above(tx, endpoint, number, pool) if load.waiting and mine else 0
            above = max(above, held)
            rule = self._rule(endpoint, version, pool)
            count = desired(load, replace(rule, most=rule.most + held)) - len(mine)
            if version.state is VersionState.ROLLING and not mine:
                count = max(count, 1)
            wanted += [WantedInstances(endpoint.id, number, pool)] * max(0, count)
        room = scaling_of(endpoint).max + above - len(instances)
        # A new version may start beside the old one even where there is room for one alone.
        rolling = [one for one in wanted if one.version != endpoint.current][:1]
        rest = [one for one in wanted if one.version == endpoint.current]
        if len(rest) > room:
            # Those that are kept in any case have no parameters.
            kept = {""} if scaling_of(endpoint).min else set()
            busy = {one.pool for one in rest} | kept
            self._svc.dispatch.make_room(endpoint.id, len(rest) - max(0, room), but=busy)
        return [*rolling, *rest[: max(0, room)]]

    def _unneeded(self, tx: Tx, endpoint: Endpoint, instances: list[Instance]) -> list[RunId]:
        """Those that no host has taken and no call waits for: they would take a place from others later."""
        before = self._svc.clock.now() - SURE_AFTER_S
        found: list[RunId] = []
        for one in instances:
            if one.ready_at is not None or one.created_at > before:
                continue
            run = tx.runs.get(one.run_id)
            version = tx.endpoints.version(endpoint.id, one.version)
            if run is None or run.state is not RunState.QUEUED or version is None:
                continue
            numbers = (one.version, 0) if one.version == endpoint.current else (one.version,)
            pools = [CallPool(endpoint.id, number, one.pool) for number in numbers]
            place = (one.version, one.pool)
            left = sum((other.version, other.pool) == place for other in instances) - len(found)
            if (
                version.state is not VersionState.ROLLING
                and left > self._rule(endpoint, version, one.pool).least
                and not any(tx.calls.waiting(pool, after=None, limit=1) for pool in pools)
            ):
                found.append(one.run_id)
        return found

    def _held_above(self, tx: Tx, endpoint: Endpoint, number: int, pool: str) -> int:
        """How many calls of this endpoint wait, themselves running, for the first in the queue to end.

        Each of them has an instance that it cannot let go: without one more they would wait for ever.
        """
        numbers = {number, 0} if number == endpoint.current else {number}
        held = 0
        for one in numbers:
            first = self._svc.dispatch.first(CallPool(endpoint.id, one, pool))
            call = None if first is None else tx.calls.get(first)
            found = 0
            while call is not None and call.parent_id is not None:
                call = tx.calls.get(call.parent_id)
                found += call is not None and call.endpoint_id == endpoint.id and call.ended_at is None
            held = max(held, found)
        return held

    def _pools(self, tx: Tx, endpoint: Endpoint) -> set[tuple[int, str]]:
        found = {
            (pool.version or endpoint.current, pool.key)
            for pool in self._svc.dispatch.pools(endpoint.id)
            if pool.version or endpoint.current
        }
        if endpoint.current and scaling_of(endpoint).min:
            found.add((endpoint.current, ""))
        found |= {
            (one.version, "")
            for one in tx.endpoints.versions(endpoint.id)
            if one.state is VersionState.ROLLING
        }
        return found

    def _rule(self, endpoint: Endpoint, version: EndpointVersion, pool: str) -> ScalingRule:
        scaling = scaling_of(endpoint)
        least = scaling.min if version.version == endpoint.current and not pool else 0
        return ScalingRule(
            least, scaling.max, scaling.queue_delay_s, scaling.per_instance, scaling.concurrency
        )

    def _load(self, endpoint: Endpoint, number: int, pool: str, mine: list[Instance]) -> EndpointLoad:
        numbers = {number, 0} if number == endpoint.current else {number}
        now = self._svc.clock.now()
        waiting, waited_s = 0, 0.0
        for one in numbers:
            count, since = self._svc.dispatch.depth(CallPool(endpoint.id, one, pool))
            waiting += count
            waited_s = max(waited_s, 0.0 if since is None else now - since)
        running = self._svc.dispatch.running(endpoint.id)
        return EndpointLoad(waiting, waited_s, running, len(mine), sum(one.ready_at is None for one in mine))

    async def _make(self, endpoint: Endpoint, wanted: WantedInstances) -> None:
        svc = self._svc

        def unit(tx: Tx) -> None:
            version = tx.endpoints.version(endpoint.id, wanted.version)
            if version is None:
                return
            spec = RunSpec.model_validate_json(version.spec)
            params = tx.endpoints.pool(endpoint.id, wanted.pool) if wanted.pool else None
            functions = json.loads(version.functions)
            run = new_run(instance_spec(spec, functions, endpoint, wanted, params))
            now = svc.clock.now()
            done = submit(
                tx, [run], request_id=secrets.token_hex(16), group=None, principal=version.created_by, now=now
            )
            tx.endpoints.insert_instance(
                Instance(done.ids[0], endpoint.id, wanted.version, wanted.pool, None, now)
            )

        try:
            await svc.store.write(unit)
        except CorralError as error:
            log.warning("no instance of %s can be made: %s", endpoint.name, error.message)
            why = error.message
            if not isinstance(error, InvalidInput | NotFound):
                # A quota, or a database that is away: it may be otherwise in a moment.
                return
            await svc.store.write(lambda tx: broke(tx, endpoint.id, wanted.version, why))

    async def _end(self, run_id: RunId, why: str) -> None:
        svc = self._svc

        def unit(tx: Tx) -> None:
            run = tx.runs.get(run_id)
            if run is not None and run.state not in FINAL:
                cancel_run(tx, run_id, reason=why, actor=ACTOR, now=svc.clock.now(), policy=svc.policy)

        await svc.store.write(unit)

    @staticmethod
    def _is_stopped(tx: Tx, endpoint_id: EndpointId) -> bool:
        endpoint = tx.endpoints.get(endpoint_id)
        return endpoint is not None and endpoint.stopped

    async def _remove(self, endpoint_id: EndpointId) -> None:
        """Cancel what waits, then forget it."""
        svc = self._svc

        def unit(tx: Tx) -> list[CallRecord]:
            return [
                cancel(tx, call.id, now=svc.clock.now())
                for state in ("queued", "assigned")
                for call in tx.calls.page(
                    CallFilter(endpoint_id=endpoint_id, state=state), after=None, limit=PAGE
                )
            ]

        def remove(tx: Tx) -> bool:
            """Unless somebody called it since."""
            endpoint = tx.endpoints.lock(endpoint_id)
            if endpoint is None or not self._is_forsaken(tx, endpoint):
                return False
            tx.endpoints.delete(endpoint_id)
            return True

        if await svc.store.read(lambda tx: self._is_stopped(tx, endpoint_id)):
            while ended := await svc.store.write(unit):
                svc.results.ended(ended)
        if not await svc.store.write(remove):
            return
        self._was_ready = {key for key in self._was_ready if key[0] != endpoint_id}
        svc.dispatch.drop_endpoint(endpoint_id)
        svc.book.forget(endpoint_id)


def _page(after: EndpointId | None, tx: Tx) -> list[Endpoint]:
    return tx.endpoints.page(None, after=after, limit=PAGE)


def _forget_instance(run_id: RunId, tx: Tx) -> None:
    tx.endpoints.delete_instance(run_id)


def instance_spec(
    spec: RunSpec,
    functions: dict[str, Any],
    endpoint: Endpoint,
    wanted: WantedInstances,
    params: PoolParams | None,
) -> RunSpec:
    """The run that serves one pool."""
    given = (
        None
        if params is None
        else payload_table(Payload(params.format, params.params, None, len(params.params)))
    )
    assert spec.service is not None, "a deploy without it is refused"
    service = ServiceTable(
        entry=spec.service.entry,
        functions=functions,
        endpoint=endpoint.name,
        endpoint_id=endpoint.id,
        version=wanted.version,
        pool=wanted.pool,
        params=given,
        concurrency=scaling_of(endpoint).concurrency,
        volumes=spec.service.volumes,
        max_memory=spec.service.max_memory,
    )
    return spec.model_copy(update={"name": endpoint.name, "service": service})
