"""Routes: logs and metrics of a run, by page; logs also as a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from corral.core import logs
from corral.core.runs.transitions import read_run
from corral.domain.artifacts import Segment
from corral.domain.ids import RunId
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL
from corral.server.auth import User, find_run
from corral.server.pages import FilledPage, LongLimit, filled, json_answer
from corral.server.routes.events import EVENTS, PAGE, Follow, StreamPage, event, stream, view_of
from corral.server.services import Services, Svc
from corral.wire.logs import LogLine, LogPage, MetricPage, MetricPoint
from corral.wire.runs import RunView

router = APIRouter(prefix="/v1", tags=["streams"])
Cursor = Annotated[str | None, Query(max_length=80)]
MetricName = Annotated[str | None, Query(max_length=128)]


class StreamSlice(NamedTuple):
    page: FilledPage[logs.StoredLine]
    after: logs.Cursor
    # The run was final before the segments were read, so nothing can come behind them.
    ended: bool

    def as_json(self) -> bytes:
        """A `LogPage` or a `MetricPage`."""
        return self.page.as_json(next=self.after.render(), ended=self.ended)


@router.get("/runs/{run}/logs", response_model=LogPage, responses=EVENTS)
async def get_logs(
    run: str,
    caller: User,
    svc: Svc,
    request: Request,
    cursor: Cursor = None,
    limit: LongLimit = 1000,
    tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
    follow: Follow = False,
    rank: Annotated[int, Query(ge=0, le=100_000)] = 0,
) -> Response:
    """A page of a rank's output; with `follow` a stream that ends with the run."""
    run_id = await svc.store.read(lambda tx: find_run(tx, run, caller))
    start = logs.parse_cursor(cursor)
    if tail is not None:
        start = await _tail_start(svc, run_id, tail, rank)
    if not follow:
        return json_answer((await _slice(svc, run_id, logs.LOG, start, limit, _log_line, rank)).as_json())
    shown: RunView | None = None

    async def look() -> StreamPage:
        nonlocal start, shown
        found = await _slice(svc, run_id, logs.LOG, start, PAGE, _log_line, rank)
        start = found.after
        events = [event("log", text.decode(), line.after.render()) for line, text in found.page.shown]
        if not found.ended and (view := await view_of(svc, run_id)) != shown:
            shown = view
            events.insert(0, event("state", view.model_dump_json()))
        return StreamPage(events, found.ended, found.page.full)

    return stream(svc, run_id, request, look)


@router.get("/runs/{run}/metrics", response_model=MetricPage)
async def get_metrics(
    run: str, caller: User, svc: Svc, cursor: Cursor = None, limit: LongLimit = 1000, name: MetricName = None
) -> Response:
    """A page of metric points, in the order in which they were written."""
    run_id = await svc.store.read(lambda tx: find_run(tx, run, caller))

    def shown(line: logs.StoredLine) -> MetricPoint | None:
        point = _metric_point(line)
        return point if name in (None, point.name) else None

    found = await _slice(svc, run_id, logs.METRIC, logs.parse_cursor(cursor), limit, shown)
    return json_answer(found.as_json())


def _log_line(line: logs.StoredLine) -> LogLine:
    at, stream, partial, text, *call = line.record
    return LogLine.model_construct(
        at=at,
        stream=stream,
        text=text,
        partial=partial,
        attempt=line.segment.attempt,
        rank=line.segment.rank,
        call=call[0] if call else None,
    )


def _metric_point(line: logs.StoredLine) -> MetricPoint:
    at, name, value, step = line.record
    return MetricPoint.model_construct(
        at=at, name=name, value=value, step=step, attempt=line.segment.attempt, rank=line.segment.rank
    )


async def _segments(svc: Services, run_id: RunId, kind: str, rank: int | None) -> tuple[Run, list[Segment]]:
    """Of one rank, or of all: ranks write at the same time, so a cursor follows only one of them."""
    run, found = await svc.store.read(lambda tx: (read_run(tx, run_id), tx.logs.segments(run_id, kind)))
    return run, [segment for segment in found if rank in (None, segment.rank)]


async def _slice(
    svc: Services,
    run_id: RunId,
    kind: str,
    start: logs.Cursor,
    limit: int,
    view: Callable[[logs.StoredLine], BaseModel | None],
    rank: int | None = None,
) -> StreamSlice:
    run, segments = await _segments(svc, run_id, kind, rank)
    lines = logs.read_lines(segments, svc.segments, start, limit=limit)
    page = await svc.in_thread(lambda: filled(lines, limit, view))
    after = max(start, logs.position(segments)) if page.last is None else page.last.after
    return StreamSlice(page, after, run.state in FINAL and not page.full)


async def _tail_start(svc: Services, run_id: RunId, count: int, rank: int) -> logs.Cursor:
    """The cursor behind which exactly the last `count` records lie."""
    _, segments = await _segments(svc, run_id, logs.LOG, rank)
    if count == 0:
        return logs.position(segments)
    start = logs.tail_cursor(segments, count)
    lines = logs.read_lines(segments, svc.segments, start, limit=10_000_000)
    last = await svc.in_thread(lambda: deque((line.after for line in lines), maxlen=count + 1))
    return last[0] if len(last) > count else start
