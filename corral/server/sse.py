"""Server-sent events: following a run until it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from corral.core.runs.transitions import read_run
from corral.domain.ids import RunId
from corral.server.openapi import streamed
from corral.server.services import Services
from corral.server.views import NameLookup, run_view
from corral.wire.runs import RunView

KEEPALIVE_S = 15.0
STILL_HERE = ": still here\n\n"
EVENTS = streamed("text/event-stream", "A page; with `follow` server-sent events.")
Follow = Annotated[bool, Query()]


def sse(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def event(kind: str, data: BaseModel, ident: str = "") -> str:
    head = f"id: {ident}\n" if ident else ""
    return f"{head}event: {kind}\ndata: {data.model_dump_json()}\n\n"


async def is_followed(svc: Services, request: Request) -> bool:
    """False once the client is gone or the server ends."""
    return not svc.hub.closing and not await request.is_disconnected()


async def view_of(svc: Services, run_id: RunId) -> RunView:
    return await svc.store.read(lambda tx: run_view(tx, read_run(tx, run_id), NameLookup(tx)))
