"""Routes: groups of runs, how they stand and why they ended as they did."""

from __future__ import annotations

import json
import math
from collections import defaultdict

from fastapi import APIRouter

from corral.domain.errors import Ambiguous, NotFound
from corral.domain.ids import GroupId
from corral.domain.runs.runs import Group
from corral.server.authorization import Caller, User
from corral.server.pages import Limit, by_time, next_page, parse_time_cursor
from corral.server.services import Svc
from corral.store.transaction import Tx
from corral.wire.groups import BestRun, EndCount, GroupDetail, GroupPage, GroupView

router = APIRouter(prefix="/v1", tags=["groups"])
_REASONS = 20
_METRICS = 20
_RUNS_READ = 10_000


@router.get("/groups")
async def list_groups(
    caller: User, svc: Svc, project: str | None = None, cursor: str | None = None, limit: Limit = 50
) -> GroupPage:
    """Newest first."""
    after = parse_time_cursor(cursor, "g", GroupId)

    def unit(tx: Tx) -> GroupPage:
        found = tx.groups.page(caller.narrowed(project), after=after, limit=limit)
        items = [_view(tx, group) for group in found]
        return GroupPage(items=items, next=next_page(found, limit, by_time))

    return await svc.store.read(unit)


@router.get("/groups/{group}")
async def get_group(group: str, caller: User, svc: Svc) -> GroupDetail:
    """One group by its id or name; of several with the name, the newest."""
    return await svc.store.read(lambda tx: _detail(tx, _find(tx, group, caller)))


def _find(tx: Tx, text: str, caller: Caller) -> Group:
    ids = tx.groups.find(text, caller.token.project)
    found = [group for group_id in ids if (group := tx.groups.get(group_id)) is not None]
    if not found:
        raise NotFound(f"there is no group {text[:80]!r}", hint="List them with `corral groups ls`.")
    if len({group.project for group in found}) > 1:
        raise Ambiguous(
            f"more than one project has a group {text}: {', '.join(group.id for group in found)}",
            hint="Give the group's id.",
        )
    return max(found, key=lambda group: (group.created_at, group.id))


def _view(tx: Tx, group: Group) -> GroupView:
    states = tx.groups.states(group.id)
    return GroupView(**group._asdict(), runs=sum(states.values()), states=states)


def _detail(tx: Tx, group: Group) -> GroupDetail:
    values: defaultdict[str, list[BestRun]] = defaultdict(list)
    for run_id, text in tx.groups.metrics(group.id, _RUNS_READ):
        for name, value in json.loads(text).items():
            if isinstance(value, int | float) and math.isfinite(value):
                values[name].append(BestRun.model_construct(metric=name, value=value, run_id=run_id))
    shown = [values[name] for name in sorted(values)[:_METRICS]]
    return GroupDetail(
        **_view(tx, group).model_dump(),
        ended_with=[
            EndCount(**{**end._asdict(), "detail": end.detail and end.detail[:500]})
            for end in tx.groups.ends(group.id, _REASONS)
        ],
        least=[min(found, key=lambda best: best.value) for found in shown],
        greatest=[max(found, key=lambda best: best.value) for found in shown],
    )
