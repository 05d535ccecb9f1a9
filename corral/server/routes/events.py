"""Routes: events of one run, by page or as a stream, and of all runs; and how anything is streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from corral.core.runs.transitions import read_run
from corral.core.wakeups import wait_for
from corral.domain.ids import RunId
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL
from corral.server.auth import User, find_run
from corral.server.openapi import streamed
from corral.server.pages import Limit, next_page
from corral.server.services import Services, Svc
from corral.server.views import NameLookup, event_view, run_view
from corral.store.transaction import Tx
from corral.wire.runs import EventPage, EventView, RunView

router = APIRouter(prefix="/v1", tags=["streams"])
PAGE = 1000
KEEPALIVE_S = 15.0
EVENTS = streamed("text/event-stream", "A page; with `follow` server-sent events.")
Follow = Annotated[bool, Query()]


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
    if not follow:
        _, events = await _event_page(svc, run_id, after, limit)
        return EventPage(items=events, next=next_page(events, limit, lambda last: str(last.n)))

    async def look() -> StreamPage:
        nonlocal after
        found, events = await _event_page(svc, run_id, after, PAGE)
        after = events[-1].n if events else after
        ended = found.state in FINAL and after >= found.event_n
        return StreamPage([event("event", one, str(one.n)) for one in events], ended)

    return stream(svc, run_id, request, look)


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


class StreamPage(NamedTuple):
    """What one look at a run finds to send; `ended` if nothing can follow."""

    events: list[str]
    ended: bool


def stream(
    svc: Services, run_id: RunId, request: Request, look: Callable[[], Awaitable[StreamPage]]
) -> Response:
    """Server-sent events: all that `look` finds, again whenever the run changes, until it has ended."""

    async def events() -> AsyncIterator[str]:
        with svc.hub.watch(run_id) as changed:
            while not svc.hub.closing and not await request.is_disconnected():
                # Cleared before looking: what changes after the look ends the wait below at once.
                changed.clear()
                found = await look()
                for text in found.events:
                    yield text
                if found.ended:
                    yield event("end", await view_of(svc, run_id))
                    return
                if len(found.events) < PAGE and not await wait_for(changed, KEEPALIVE_S):
                    yield ": still here\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def event(kind: str, data: BaseModel, ident: str = "") -> str:
    head = f"id: {ident}\n" if ident else ""
    return f"{head}event: {kind}\ndata: {data.model_dump_json()}\n\n"


async def view_of(svc: Services, run_id: RunId) -> RunView:
    return await svc.store.read(lambda tx: run_view(tx, read_run(tx, run_id), NameLookup(tx)))
