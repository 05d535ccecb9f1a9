"""Routes: acting on every run that a filter finds, one page and one run at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter

from corral.core import secrets
from corral.core.batch_write import write_together
from corral.core.runs.cancel import cancel
from corral.core.runs.requeue import failed_parent, requeue_with_children, was_requeued
from corral.domain.canonical import digest_of
from corral.domain.errors import CorralError, StoreUnavailable
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
Act = Callable[[Tx, Run], ActionResult | ActionRefusal]


@router.post("/runs/cancel")
async def cancel_runs(body: CancelManyRequest, caller: User, svc: Svc) -> ManyAnswer:
    """Cancel every run that the filter finds; those that have ended are left out."""

    def check(tx: Tx, run: Run) -> ActionResult | ActionRefusal:
        if run.state in (RunState.STOPPING, RunState.HALTING):
            return ActionRefusal(id=run.id, why=f"is {run.state} already")
        return ActionResult(id=run.id, name=run.name, state=run.state)

    def act(tx: Tx, run: Run) -> ActionResult | ActionRefusal:
        if isinstance(found := check(tx, run), ActionRefusal):
            return found
        secrets.refuse_exposed(tx, svc.cipher, run.project, body.reason, what="the reason")
        now = svc.clock.now()
        done = cancel(tx, run.id, reason=body.reason, actor=caller.actor, now=now, policy=svc.policy)
        return ActionResult(id=done.id, name=done.name, state=done.state)

    return await _each(svc, caller, body, _LIVE, check if body.dry_run else act)


@router.post("/runs/requeue")
async def requeue_runs(body: RequeueManyRequest, caller: User, svc: Svc) -> ManyAnswer:
    """Queue every run that the filter finds again, with those that ended because of it.

    Without states, those that failed or were cancelled. One that has a next generation is left alone.
    """

    def check(tx: Tx, run: Run) -> ActionResult | ActionRefusal:
        if was_requeued(tx, run):
            return ActionRefusal(id=run.id, why="was queued again before")
        if (parent := failed_parent(tx, run)) is not None:
            return ActionRefusal(
                id=run.id, why=f"comes after {parent}, which did not succeed, and goes with it"
            )
        return ActionResult(id=run.id, name=run.name, state=run.state)

    def act(tx: Tx, run: Run) -> ActionResult | ActionRefusal:
        request_id = digest_of([body.request_id, run.id])[:32]
        if tx.runs.submission(caller.actor, request_id) is None and isinstance(
            found := check(tx, run), ActionRefusal
        ):
            return found
        now = svc.clock.now()
        done = requeue_with_children(tx, run.id, request_id=request_id, principal=caller.actor, now=now)
        return ActionResult(id=run.id, name=run.name, state=run.state, new=list(done.ids))

    return await _each(svc, caller, body, _ENDED_BADLY, check if body.dry_run else act)


async def _each(
    svc: Services, caller: Caller, body: ManyRequest, states: tuple[RunState, ...], act: Act
) -> ManyAnswer:
    where = run_filter(caller, body.which, states)
    after = parse_time_cursor(body.cursor, "r")
    place = None if after is None else (after[0], RunId(after[1]))
    runs = await svc.store.read(lambda tx: tx.runs.page(where, after=place, limit=body.limit))
    if body.dry_run:
        results: list[ActionResult | ActionRefusal] = await svc.store.read(
            lambda tx: [act(tx, run) for run in runs]
        )
    else:
        units = [partial(_locked, act, run.id) for run in runs]
        answers = await write_together(svc.store, lambda tx: tx.runs.lock_all(run.id for run in runs), units)
        results = [_told(run, answer) for run, answer in zip(runs, answers, strict=True)]
    return ManyAnswer(
        done=[one for one in results if isinstance(one, ActionResult)],
        skipped=[one for one in results if isinstance(one, ActionRefusal)],
        next=time_cursor(runs[-1].created_at, runs[-1].id) if len(runs) == body.limit else None,
    )


def run_filter(caller: Caller, which: RunSelection, states: tuple[RunState, ...]) -> RunFilter:
    if which.project is not None:
        caller.check_project(which.project)
    label = None if which.label is None else which.label.split("=", 1)
    return RunFilter(
        project=which.project or caller.token.project,
        states=tuple(which.states) or states,
        group=which.group,
        name=which.name,
        label=None if label is None else (label[0], label[1]),
        schedule=which.schedule,
    )


def _locked(act: Act, run_id: RunId, tx: Tx) -> ActionResult | ActionRefusal:
    run = tx.runs.lock(run_id)
    if run is None:
        return ActionRefusal(id=run_id, why="was removed meanwhile")
    return act(tx, run)


def _told(run: Run, answer: ActionResult | ActionRefusal | Exception) -> ActionResult | ActionRefusal:
    """What one run refuses says why, and keeps no other from its turn."""
    if isinstance(answer, CorralError) and not isinstance(answer, StoreUnavailable):
        return ActionRefusal(id=run.id, why=answer.message)
    if isinstance(answer, Exception):
        raise answer
    return answer
