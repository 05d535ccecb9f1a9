"""Routes: acting on every run that a filter finds, one page and one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fastapi import APIRouter

from corral.core import secrets
from corral.core.batch_write import write_together
from corral.core.runs.cancel import cancel, check_cancel
from corral.core.runs.requeue import check_requeue, requeue_with_children
from corral.domain.canonical import digest_of
from corral.domain.errors import CorralError, NotFound, StoreUnavailable
from corral.domain.ids import RunId
from corral.domain.runs import Run, RunFilter
from corral.domain.states import FINAL, RunState
from corral.ports.store import Tx
from corral.server.authorization import Caller, User
from corral.server.cursors import parse_time_cursor, time_cursor
from corral.server.services import Services, Svc
from corral.wire.runs import (
    ActionRefusal,
    ActionResult,
    CancelManyRequest,
    ManyAnswer,
    ManyRequest,
    RequeueManyRequest,
    RunSelection,
)

router = APIRouter(prefix="/v1", tags=["runs"])
_LIVE = tuple(state for state in RunState if state not in FINAL)
_ENDED_BADLY = (RunState.FAILED, RunState.CANCELLED)
Act = Callable[[Tx, Run], ActionResult]


@router.post("/runs/cancel")
async def cancel_runs(body: CancelManyRequest, caller: User, svc: Svc) -> ManyAnswer:
    """Cancel every run that the filter finds; those that have ended are left out."""

    def act(tx: Tx, run: Run) -> ActionResult:
        check_cancel(run)
        if not body.dry_run:
            secrets.refuse_exposed(tx, svc.cipher, run.project, body.reason, what="the reason")
            now = svc.clock.now()
            run = cancel(tx, run.id, reason=body.reason, actor=caller.actor, now=now, policy=svc.policy)
        return ActionResult(id=run.id, name=run.name, state=run.state)

    return await _each(svc, caller, body, _LIVE, act)


@router.post("/runs/requeue")
async def requeue_runs(body: RequeueManyRequest, caller: User, svc: Svc) -> ManyAnswer:
    """Queue every run that the filter finds again, with those that ended because of it.

    Without states, those that failed or were cancelled. One that has a next generation is left alone.
    """

    def act(tx: Tx, run: Run) -> ActionResult:
        request_id = digest_of([body.request_id, run.id])[:32]
        if body.dry_run or tx.runs.submission(caller.actor, request_id) is None:
            check_requeue(tx, run)
        new: Sequence[str] = ()
        if not body.dry_run:
            now, actor = svc.clock.now(), caller.actor
            new = requeue_with_children(tx, run.id, request_id=request_id, principal=actor, now=now).ids
        return ActionResult(id=run.id, name=run.name, state=run.state, new=list(new))

    return await _each(svc, caller, body, _ENDED_BADLY, act)


async def _each(
    svc: Services, caller: Caller, body: ManyRequest, states: tuple[RunState, ...], act: Act
) -> ManyAnswer:
    where = run_filter(caller, body.which, states)
    after = parse_time_cursor(body.cursor, "r", RunId)
    runs = await svc.store.read(lambda tx: tx.runs.page(where, after=after, limit=body.limit))
    results: Sequence[ActionResult | Exception]
    if body.dry_run:
        results = await svc.store.read(lambda tx: [_tried(act, tx, run) for run in runs])
    else:
        units = [partial(_locked, act, run.id) for run in runs]
        results = await write_together(svc.store, lambda tx: tx.runs.lock_all(run.id for run in runs), units)
    done = [_answered(run, result) for run, result in zip(runs, results, strict=True)]
    return ManyAnswer(
        done=[one for one in done if isinstance(one, ActionResult)],
        skipped=[one for one in done if isinstance(one, ActionRefusal)],
        next=time_cursor(runs[-1].created_at, runs[-1].id) if len(runs) == body.limit else None,
    )


def run_filter(caller: Caller, which: RunSelection, states: tuple[RunState, ...]) -> RunFilter:
    label = None if which.label is None else which.label.split("=", 1)
    return RunFilter(
        project=caller.narrowed(which.project),
        states=tuple(which.states) or states,
        group=which.group,
        name=which.name,
        label=None if label is None else (label[0], label[1]),
        schedule=which.schedule,
    )


def _locked(act: Act, run_id: RunId, tx: Tx) -> ActionResult:
    run = tx.runs.lock(run_id)
    if run is None:
        raise NotFound("was removed meanwhile")
    return act(tx, run)


def _tried(act: Act, tx: Tx, run: Run) -> ActionResult | CorralError:
    try:
        return act(tx, run)
    except CorralError as error:
        return error


def _answered(run: Run, result: ActionResult | Exception) -> ActionResult | ActionRefusal:
    """A run that refuses says why, and keeps no other from its turn."""
    if isinstance(result, CorralError) and not isinstance(result, StoreUnavailable):
        return ActionRefusal(id=run.id, why=result.message)
    if isinstance(result, Exception):
        raise result
    return result
