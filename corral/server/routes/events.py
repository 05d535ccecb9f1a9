"""Routes: events of one run, by page or as a stream, and of all runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from corral.core.runs.transitions import read_run
from corral.core.wakeups import wait_for
from corral.domain.ids import RunId
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL
from corral.server.authorization import Limit, User, find_run
from corral.server.services import Services, Svc
from corral.server.sse import EVENTS, KEEPALIVE_S, STILL_HERE, Follow, event, is_followed, sse, view_of
from corral.server.views import NameLookup, event_view
from corral.store.transaction import Tx
from corral.wire.runs import EventPage, EventView

router = APIRouter(prefix="/v1", tags=["streams"])
PAGE = 1000


@router.get("/runs/{run}/events", response_model=EventPage, responses=EVENTS)
async def get_events(
    run: str,
    caller: User,
    svc: Svc,
    request: Request,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    limit: Limit = 100,
    follow: Follow = False,
) -> EventPage | Response:
    """The run's history; with `follow` a stream that ends with the run."""
    run_id = await svc.store.read(lambda tx: find_run(tx, run, caller))
    if follow:
        return sse(_follow_events(svc, run_id, after, request))
    _, events = await _event_page(svc, run_id, after, limit)
    more = str(events[-1].n) if len(events) == limit else None
    return EventPage(items=events, next=more)


async def _follow_events(svc: Services, run_id: RunId, after: int, request: Request) -> AsyncIterator[str]:
    with svc.hub.watch(run_id) as changed:
        while await is_followed(svc, request):
            changed.clear()
            run, events = await _event_page(svc, run_id, after, PAGE)
            for one in events:
                after = one.n
                yield event("event", one, str(one.n))
            if run.state in FINAL and after >= run.event_n:
                yield event("end", await view_of(svc, run_id))
                return
            if len(events) < PAGE and not await wait_for(changed, KEEPALIVE_S):
                yield STILL_HERE


async def _event_page(svc: Services, run_id: RunId, after: int, limit: int) -> tuple[Run, list[EventView]]:
    def unit(tx: Tx) -> tuple[Run, list[EventView]]:
        names = NameLookup(tx)
        events = tx.events.of_run(run_id, after=after, limit=limit)
        return read_run(tx, run_id), [event_view(event, names) for event in events]

    return await svc.store.read(unit)


@router.get("/events")
async def feed(
    caller: User, svc: Svc, cursor: Annotated[str, Query(max_length=64)] = "", limit: Limit = 100
) -> EventPage:
    """Events of all runs, in the order in which they were committed."""

    def unit(tx: Tx) -> EventPage:
        events, after = tx.events.feed(cursor, limit)
        projects: dict[str, bool] = {}
        for one in events:
            if one.run_id not in projects:
                run = tx.runs.get(one.run_id)
                projects[one.run_id] = run is not None and caller.sees(run.project)
        names = NameLookup(tx)
        return EventPage(items=[event_view(e, names) for e in events if projects[e.run_id]], next=after)

    return await svc.store.read(unit)
