"""Routes: groups of runs, how they stand, why they ended as they did, and what came out of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Response

from corral.core.runs.group_ends import merged_ends
from corral.core.runs.group_results import GroupOutcome, outcome
from corral.core.runs.groups import find_group
from corral.domain.errors import TooLarge
from corral.domain.ids import GroupId, RunId
from corral.domain.runs.measures import better
from corral.domain.runs.runs import EndedRun, Group, GroupRun, MeasuredRun
from corral.server.auth import User
from corral.server.pages import Limit, by_time, in_portions, json_answer, next_page, parse_time_cursor
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.groups import (
    BestRun,
    EndCount,
    GroupDetail,
    GroupPage,
    GroupResults,
    GroupRunResult,
    GroupVariant,
    GroupView,
    MetricSummary,
)

router = APIRouter(prefix="/v1", tags=["groups"])
_REASONS = 20
_METRICS = 20
_RUNS_READ = 10_000
# How many are read at a time: what a run was given may have 1 MiB, its metrics 200 KiB.
_ENDS, _GIVEN = 500, 64
T = TypeVar("T", EndedRun, GroupRun)


@router.get("/groups")
async def list_groups(
    caller: User,
    svc: Svc,
    project: str | None = None,
    name: str | None = None,
    cursor: str | None = None,
    limit: Limit = 50,
) -> GroupPage:
    """Newest first; with `name` those of that name, or the one of that id."""
    after = parse_time_cursor(cursor, "g", GroupId)

    def unit(tx: Tx) -> GroupPage:
        found = tx.groups.page(caller.narrowed(project), after=after, limit=limit, text=name)
        items = [_view(tx, group) for group in found]
        return GroupPage(items=items, next=next_page(found, limit, by_time))

    return await svc.store.read(unit)


@router.get("/groups/{group}")
async def get_group(group: str, caller: User, svc: Svc) -> GroupDetail:
    """One group by its id or name; of several with the name, the newest."""
    found = await svc.store.read(lambda tx: find_group(tx, group, caller.token.project))

    def page(tx: Tx, last: EndedRun | None) -> list[EndedRun]:
        return tx.groups.ended(found.id, after="" if last is None else last.id, limit=_ENDS)

    ended = await _all_of(svc, page, _ENDS)
    return await svc.store.read(lambda tx: _detail(tx, found, ended))


@router.get("/groups/{group}/results", response_model=GroupResults)
async def get_results(group: str, caller: User, svc: Svc) -> Response:
    """What came out of a group: its runs by what they were given, and each metric over their seeds."""
    found = await svc.store.read(lambda tx: find_group(tx, group, caller.token.project))

    def page(tx: Tx, last: GroupRun | None) -> list[GroupRun]:
        after = None if last is None else (last.created_at, last.id)
        return tx.groups.runs(found.id, after=after, limit=_GIVEN)

    runs = await _all_of(svc, page, _GIVEN)
    return json_answer(await svc.in_thread(lambda: _results(found, outcome(runs)).model_dump_json()))


def _results(group: Group, found: GroupOutcome) -> GroupResults:
    metrics = {name for variant in found.variants for name in variant.metrics}
    return GroupResults(
        group_id=group.id,
        swept=list(found.swept),
        better={name: good for name in sorted(metrics) if (good := better(name)) is not None},
        variants=[
            GroupVariant(
                name=variant.name,
                params=dict(variant.params),
                runs=[GroupRunResult(**run._asdict()) for run in variant.runs],
                metrics={name: MetricSummary(**vars(one)) for name, one in variant.metrics.items()},
            )
            for variant in found.variants
        ],
    )


async def _all_of(svc: Services, page: Callable[[Tx, T | None], list[T]], portion: int) -> list[T]:
    """Page after page, each in a transaction of its own: specs and last words may be long."""
    found: list[T] = []
    size = 0
    while len(found) < _RUNS_READ:
        last = found[-1] if found else None
        more = await svc.store.read(partial(_next_page, page, last))
        found += more
        size += sum(len(field) for row in more for field in row if isinstance(field, str))
        if size > svc.limits.group_chars:
            raise TooLarge(
                f"what is known of the group's runs has more than {svc.limits.group_chars} characters",
                hint="See its runs one by one: `corral ls --group GROUP` and `corral show RUN`.",
            )
        if len(more) < portion:
            break
    return found


def _next_page(page: Callable[[Tx, T | None], list[T]], last: T | None, tx: Tx) -> list[T]:
    return page(tx, last)


def _view(tx: Tx, group: Group) -> GroupView:
    states = tx.groups.states(group.id)
    return GroupView(**group._asdict(), runs=sum(states.values()), states=states)


def _detail(tx: Tx, group: Group, ended: list[EndedRun]) -> GroupDetail:
    def read(after: tuple[float, RunId] | None, count: int) -> list[MeasuredRun]:
        return tx.groups.metrics(group.id, after=after, limit=count)

    runs = in_portions(
        read, lambda run: (run.created_at, run.id), after=None, limit=_RUNS_READ, portion=_GIVEN
    )
    least, greatest = _extremes(runs)
    return GroupDetail(
        **_view(tx, group).model_dump(),
        ended_with=[
            EndCount(**{**end._asdict(), "detail": end.detail and end.detail[:500]})
            for end in merged_ends(ended, most=_REASONS)
        ],
        least=least,
        greatest=greatest,
    )


def _extremes(runs: Iterable[MeasuredRun]) -> tuple[list[BestRun], list[BestRun]]:
    """Of the first metrics by name: the run with the least value of each, and that with the greatest."""
    found: dict[str, tuple[BestRun, BestRun]] = {}
    for run in runs:
        for name, value in json.loads(run.metrics).items():
            if isinstance(value, int | float) and math.isfinite(value):
                one = BestRun.model_construct(metric=name, value=value, run_id=run.id)
                low, high = found.get(name, (one, one))
                found[name] = (one if value < low.value else low, one if value > high.value else high)
        # A name behind so many others is not shown, whatever comes.
        found = {name: found[name] for name in sorted(found)[:_METRICS]}
    return [low for low, _ in found.values()], [high for _, high in found.values()]
