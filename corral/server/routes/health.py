"""Routes: health of the server, its metrics for Prometheus, and fsck."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.process_collector import ProcessCollector

from corral import __version__
from corral.core.audit import note
from corral.core.storage.fsck import Fsck
from corral.domain.errors import CorralError, StoreUnavailable
from corral.server.auth import Monitor, Operator
from corral.server.metrics import Snapshot, gauges_of
from corral.server.openapi import streamed
from corral.server.services import Services, Svc
from corral.wire.health import FsckLine, Health

log = logging.getLogger("corral.server")
router = APIRouter(prefix="/v1", tags=["admin"])
LINES = streamed("application/x-ndjson", "Lines of JSON, each a FsckLine.")


@router.get("/health", responses={503: {"model": Health}})
async def health(svc: Svc, response: Response) -> Health:
    """Whether the server can read its database and has room on its disk; needs no token."""
    try:
        # One row: anybody may ask, as often as they like.
        await svc.store.read(lambda tx: tx.installation.get())
    except CorralError as error:
        response.status_code = 503
        return Health(ok=False, version=__version__, detail=error.message)
    if svc.store.damaged is not None:
        response.status_code = 503
        return Health(ok=False, version=__version__, detail=svc.store.damaged, now=svc.clock.now())
    detail = _disk_problem(await svc.in_thread(svc.blobs.free_bytes), svc.limits.min_free_bytes)
    # Not 503: runs go on, and whoever keeps requests from such a server would end them.
    return Health(ok=not detail, version=__version__, detail=detail, now=svc.clock.now())


def _disk_problem(free: int | None, needed: int) -> str:
    if free is None or free >= max(1, needed):
        return ""
    return f"the server's disk is full: it has {free} bytes free, and {needed} are to be kept"


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """Rendered once: it is large, and needs no token."""
    state = request.app.state
    if not hasattr(state, "openapi"):
        state.openapi = JSONResponse(request.app.openapi()).body
    return Response(state.openapi, media_type="application/json")


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(_: Monitor, svc: Svc) -> PlainTextResponse:
    """For Prometheus."""

    now = svc.clock.now()
    gauges = await svc.store.read(lambda tx: gauges_of(tx, now=now, policy=svc.policy))
    gauges["corral_claims_waiting"] = [({}, float(len(svc.long_polls)))]
    gauges["corral_database_damaged"] = [({}, float(svc.store.damaged is not None))]
    for name, size in (
        ("corral_disk_free_bytes", await svc.in_thread(svc.blobs.free_bytes)),
        ("corral_database_bytes", await svc.in_thread(svc.store.size_bytes)),
    ):
        gauges[name] = [] if size is None else [({}, float(size))]
    registry = CollectorRegistry()
    registry.register(Snapshot(svc.counters, gauges))
    ProcessCollector(registry=registry)
    # A large fleet has tens of thousands of numbers.
    text = await svc.in_thread(lambda: generate_latest(registry))
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


@router.post("/fsck", response_class=StreamingResponse, responses=LINES)
async def fsck(caller: Operator, svc: Svc) -> StreamingResponse:
    """Re-hash and cross-check everything; lines of JSON, the last with `done`."""
    try:
        await svc.store.write(lambda tx: note(tx, "fsck.run", "store", caller.by(svc.clock)))
    except StoreUnavailable as error:
        # It is most wanted when the database cannot be written.
        log.warning("that fsck was run could not be written to the audit: %s", error.message)
    return StreamingResponse(_fsck_lines(svc), media_type="application/x-ndjson")


async def _fsck_lines(svc: Services) -> AsyncIterator[str]:
    problems = 0
    async for found in Fsck(svc.store, svc.blobs, svc.segments, svc.in_thread).check():
        problems += found.problem is not None
        line = FsckLine(check=found.check, checked=found.checked, problem=found.problem)
        yield line.model_dump_json() + "\n"
    yield FsckLine(check="all", checked=problems, done=True).model_dump_json() + "\n"
