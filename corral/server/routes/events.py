"""Routes: events of one run, by page or as a stream, and of all runs; and how anything is streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from corral.core.runs.transitions import read_run
from corral.core.wakeups import wait_for
from corral.domain.ids import RunId
from corral.domain.runs.runs import Event, Run
from corral.domain.runs.states import FINAL
from corral.server.auth import User, find_run
from corral.server.openapi import streamed
from corral.server.pages import FilledPage, Limit, filled, in_portions, json_answer
from corral.server.services import Services, Svc
from corral.server.views import NameLookup, event_view, run_view
from corral.store.transaction import Tx
from corral.wire.runs import EventPage, EventView, RunView

router = APIRouter(prefix="/v1", tags=["streams"])
PAGE = 1000
# A note may have 20,000 characters.
_PORTION = 100
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
) -> Response:
    """The run's history; with `follow` a stream that ends with the run."""
    run_id = await svc.store.read(lambda tx: find_run(tx, run, caller))
    if not follow:
        _, page = await _event_page(svc, run_id, after, limit)
        return json_answer(page.with_next(lambda last: str(last.n)))

    async def look() -> StreamPage:
        nonlocal after
        found, page = await _event_page(svc, run_id, after, PAGE)
        after = after if page.last is None else page.last.n
        ended = found.state in FINAL and after >= found.event_n
        events = [event("event", text.decode(), str(one.n)) for one, text in page.shown]
        return StreamPage(events, ended, page.full)

    return stream(svc, run_id, request, look)


async def _event_page(svc: Services, run_id: RunId, after: int, limit: int) -> tuple[Run, FilledPage[Event]]:
    def unit(tx: Tx) -> tuple[Run, FilledPage[Event]]:
        names = NameLookup(tx)

        def read(last: int | None, count: int) -> list[Event]:
            return tx.events.of_run(run_id, after=last or 0, limit=count)

        rows = in_portions(read, lambda one: one.n, after=after, limit=limit, portion=_PORTION)
        return read_run(tx, run_id), filled(rows, limit, lambda one: event_view(one, names))

    return await svc.store.read(unit)


@router.get("/events", response_model=EventPage)
async def feed(
    caller: User, svc: Svc, cursor: Annotated[str, Query(max_length=64)] = "", limit: Limit = 100
) -> Response:
    """Events of all runs, in the order in which they were committed."""

    def unit(tx: Tx) -> bytes:
        names = NameLookup(tx)
        sees = cache(lambda run_id: (run := tx.runs.get(run_id)) is not None and caller.sees(run.project))

        def read(last: str | None, count: int) -> list[tuple[Event, str]]:
            return tx.events.feed_with_cursors(last or "", count)

        def view(row: tuple[Event, str]) -> EventView | None:
            return event_view(row[0], names) if sees(row[0].run_id) else None

        rows = in_portions(read, lambda row: row[1], after=cursor, limit=limit, portion=_PORTION)
        page = filled(rows, limit, view)
        return page.as_json(next=cursor if page.last is None else page.last[1])

    return json_answer(await svc.store.read(unit))


class StreamPage(NamedTuple):
    """What one look at a run finds to send; `ended` if nothing can follow, `more` if there is more now."""

    events: list[str]
    ended: bool
    more: bool


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
                    yield event("end", (await view_of(svc, run_id)).model_dump_json())
                    return
                if not found.more and not await wait_for(changed, KEEPALIVE_S):
                    yield ": still here\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def event(kind: str, data: str, ident: str = "") -> str:
    """`data` is JSON."""
    head = f"id: {ident}\n" if ident else ""
    return f"{head}event: {kind}\ndata: {data}\n\n"


async def view_of(svc: Services, run_id: RunId) -> RunView:
    return await svc.store.read(
        lambda tx: run_view(tx, read_run(tx, run_id), NameLookup(tx), now=svc.clock.now())
    )
