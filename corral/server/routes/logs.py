"""Routes: logs and metrics of a run, by page; logs also as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from corral.core import logs
from corral.core.runs.transitions import read_run
from corral.core.wakeups import wait_for
from corral.domain.artifacts import Segment
from corral.domain.ids import RunId
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL
from corral.server.authorization import User, find_run
from corral.server.services import Services, Svc
from corral.server.sse import EVENTS, KEEPALIVE_S, STILL_HERE, Follow, event, is_followed, sse, view_of
from corral.wire.logs import LogLine, LogPage, MetricPage, MetricPoint
from corral.wire.runs import RunView

router = APIRouter(prefix="/v1", tags=["streams"])
PAGE = 1000
Cursor = Annotated[str | None, Query(max_length=80)]


class StreamSlice(NamedTuple):
    lines: list[logs.StoredLine]
    after: logs.Cursor
    # The run was final before the segments were read, so nothing can come behind them.
    ended: bool
    run: Run


@router.get("/runs/{run}/logs", response_model=LogPage, responses=EVENTS)
async def get_logs(
    run: str,
    caller: User,
    svc: Svc,
    request: Request,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
    follow: Follow = False,
) -> LogPage | Response:
    """A page of output; with `follow` a stream that ends with the run."""
    run_id = await svc.store.read(lambda tx: find_run(tx, run, caller))
    start = logs.parse_cursor(cursor)
    if tail is not None:
        start = await _tail_start(svc, run_id, tail)
    if follow:
        return sse(_follow_logs(svc, run_id, start, request))
    found = await _slice(svc, run_id, logs.LOG, start, limit)
    return LogPage(
        items=[_log_line(line) for line in found.lines], next=found.after.render(), ended=found.ended
    )


@router.get("/runs/{run}/metrics")
async def get_metrics(
    run: str,
    caller: User,
    svc: Svc,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    name: Annotated[str | None, Query(max_length=128)] = None,
) -> MetricPage:
    """A page of metric points, in the order in which they were written."""
    run_id = await svc.store.read(lambda tx: find_run(tx, run, caller))
    found = await _slice(svc, run_id, logs.METRIC, logs.parse_cursor(cursor), limit)
    points = [_metric_point(line) for line in found.lines]
    items = [p for p in points if name in (None, p.name)]
    return MetricPage(items=items, next=found.after.render(), ended=found.ended)


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


async def _segments(svc: Services, run_id: RunId, stream: str) -> tuple[Run, list[Segment]]:
    return await svc.store.read(lambda tx: (read_run(tx, run_id), tx.logs.segments(run_id, stream)))


async def _slice(svc: Services, run_id: RunId, stream: str, start: logs.Cursor, limit: int) -> StreamSlice:
    run, segments = await _segments(svc, run_id, stream)
    lines = await svc.in_thread(lambda: list(logs.read_lines(segments, svc.segments, start, limit=limit)))
    after = lines[-1].after if lines else max(start, logs.position(segments))
    return StreamSlice(lines, after, run.state in FINAL and len(lines) < limit, run)


async def _tail_start(svc: Services, run_id: RunId, count: int) -> logs.Cursor:
    """The cursor behind which exactly the last `count` records lie."""
    _, segments = await _segments(svc, run_id, logs.LOG)
    if count == 0:
        return logs.position(segments)
    start = logs.tail_cursor(segments, count)
    lines = await svc.in_thread(
        lambda: [line.after for line in logs.read_lines(segments, svc.segments, start, limit=10_000_000)]
    )
    return lines[-count - 1] if len(lines) > count else start


async def _follow_logs(
    svc: Services, run_id: RunId, start: logs.Cursor, request: Request
) -> AsyncIterator[str]:
    shown: RunView | None = None
    with svc.hub.watch(run_id) as changed:
        while await is_followed(svc, request):
            # Cleared before looking: what changes after the look ends the wait below at once.
            changed.clear()
            found = await _slice(svc, run_id, logs.LOG, start, PAGE)
            view = await view_of(svc, run_id)
            if view != shown and not found.ended:
                shown = view
                yield event("state", view)
            for line in found.lines:
                yield event("log", _log_line(line), line.after.render())
            start = found.after
            if found.ended:
                yield event("end", view)
                return
            if len(found.lines) < PAGE and not await wait_for(changed, KEEPALIVE_S):
                yield STILL_HERE
