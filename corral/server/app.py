"""The application: routes behind the gate, loops beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from fastapi import FastAPI

from corral.core import topics
from corral.core.calls.transitions import TOPIC_CALL, TOPIC_CALL_READY, parse_ready_call
from corral.core.endpoints.deploy import TOPIC_ENDPOINT
from corral.core.endpoints.scaling import Scaler
from corral.core.runs.transitions import parse_ready_key
from corral.core.wakeups import SCALE
from corral.domain.ids import CallId, EndpointId, HostId
from corral.server import errors
from corral.server.background import Loops
from corral.server.middleware import Gate
from corral.server.new_runs import instance_run
from corral.server.openapi import ERRORS, declare_scopes
from corral.server.routes import (
    artifacts,
    audit,
    blobs,
    calls,
    disk,
    endpoints,
    events,
    executors,
    groups,
    health,
    hosts,
    leases,
    local_handover,
    logs,
    manifests,
    objects,
    quotas,
    runs,
    schedules,
    secrets,
    tokens,
    volumes,
    webhooks,
)
from corral.server.routes import (
    web as web_functions,
)
from corral.server.services import Services
from corral.version import __version__

# The first that fits a path is asked.
_ROUTES = (
    runs,
    groups,
    schedules,
    logs,
    events,
    leases,
    objects,
    local_handover,
    blobs,
    artifacts,
    hosts,
    health,
    disk,
    tokens,
    secrets,
    audit,
    manifests,
    executors,
    webhooks,
    quotas,
    endpoints,
    calls,
    volumes,
    web_functions,
)


class ControlPlane:
    """Builds the ASGI app. Holds nothing that a restart would lose."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.loops = Loops(services)
        self._tasks: set[asyncio.Task[None]] = set()
        self.api = self._build()
        self.app = Gate(self.api, services=services)

    def _build(self) -> FastAPI:
        api = FastAPI(
            title="Corral",
            version=__version__,
            # Served by `routes/health.py`, which renders it once.
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            lifespan=self._lifespan,
            responses=ERRORS,
        )
        api.state.services = self.services
        errors.install(api)
        routers = [module.router for module in _ROUTES]
        for router in routers:
            api.include_router(router)
        declare_scopes(api, routers)
        return api

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.services.store.subscribe(self._heard)
        await self.loops.reconcile()
        scaler = Scaler(self.services.calls, self.services.board, instance_run)
        tasks = [asyncio.create_task(loop) for loop in (*self.loops.all(), scaler.forever())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.services.placer.close()
            await self.services.notifier.close()
            await self.services.store.close()
            self.services.io.shutdown(wait=True)
            self.services.bulk_reads.close()

    def _soon(self, work: Coroutine[None, None, None]) -> None:
        """Held on to until it is done, or it could be collected half-way."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close_waits(self) -> None:
        """Answer every long poll and end every stream, so that the server can end at once."""
        self.services.hub.close()
        self.services.long_polls.close()
        self.services.dispatch.close()
        self.services.results.close()

    def _heard(self, topic: str, key: str) -> None:
        """What a commit announced, here or on another server."""
        if topic in (topics.TOPIC_READY, topics.TOPIC_GROW, topics.TOPIC_ASSIGNED):
            self._something_for_a_host(topic, key)
        elif topic == topics.TOPIC_QUOTA:
            self._soon(self.loops.look())
        elif topic in (topics.TOPIC_RUN, topics.TOPIC_LOG):
            self.services.hub.wake(key)
        elif topic == topics.TOPIC_STOP:
            self.services.hub.wake(leases.stop_key(key))
        elif topic == topics.TOPIC_OBJECT:
            self.services.hub.wake(objects.wake_key(key))
        elif topic == TOPIC_CALL_READY:
            self._call_is_ready(key)
        elif topic == TOPIC_CALL:
            self.services.results.call_changed(CallId(key))
            self.services.dispatch.call_changed(CallId(key))
            self.services.hub.wake(f"call:{key}")
        elif topic == TOPIC_ENDPOINT:
            self.services.dispatch.endpoint_changed(EndpointId(key))
            self.services.hub.wake(f"endpoint:{key}")
            self.services.hub.wake(SCALE)
        elif topic == topics.TOPIC_HOST:
            self.services.board.roster.changed()
            self.services.long_polls.changed(HostId(key))
        elif topic == topics.TOPIC_TOKEN:
            self.services.token_cache.forget(key)
            self._soon(self.services.streams.check())

    def _something_for_a_host(self, topic: str, key: str) -> None:
        board, polls = self.services.board, self.services.long_polls
        if topic == topics.TOPIC_ASSIGNED:
            polls.changed(HostId(key))
            return
        lane, ready = parse_ready_key(key)
        if topic == topics.TOPIC_GROW:
            board.growth.wants(lane, ready)
        else:
            board.lanes.heard(lane, ready)
        if topic == topics.TOPIC_GROW or board.may_start(lane):
            polls.ready(lane.shape)

    def _call_is_ready(self, key: str) -> None:
        pool, place = parse_ready_call(key)
        self.services.results.forget(place.id)
        if not self.services.dispatch.queue(pool, place):
            self.services.hub.wake(SCALE)
