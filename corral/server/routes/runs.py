"""Routes: submitting, reading and steering runs, one or all that a filter finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from corral.core import secrets
from corral.core.placements.place import coming_of
from corral.core.placements.why import placement_notes, placement_summary
from corral.core.policy import ServerPolicy
from corral.core.queue.why import WhyQuestion, group_is_full, held_by_quota, queue_notes, standings, summary
from corral.core.queue.why_gang import gang_notes, gang_summary
from corral.core.runs.cancel import cancel, check_cancel
from corral.core.runs.group_results import Settings, stored_settings
from corral.core.runs.groups import with_one_group
from corral.core.runs.hold import hold, let_go
from corral.core.runs.listing import hidden_instances, without_instances
from corral.core.runs.model_policy import refuse_models
from corral.core.runs.remove import bytes_of, check_remove, remove
from corral.core.runs.requeue import check_requeue, requeue, requeue_with_children
from corral.core.runs.submit import NewRun, SubmitResult, never_starts, submit
from corral.core.runs.transitions import read_run
from corral.domain.artifacts import ArtifactKind
from corral.domain.canonical import digest_of
from corral.domain.errors import CorralError, NotFound, StoreUnavailable
from corral.domain.ids import RunId
from corral.domain.runs.runs import Run, RunFilter
from corral.domain.runs.states import FINAL, RunState
from corral.server.auth import Caller, User, find_run
from corral.server.bodies.checked_json import SMALL_BYTES
from corral.server.bodies.large import LargeBodyRoute
from corral.server.new_runs import new_run, refuse_large_spec
from corral.server.pages import (
    Limit,
    by_time,
    filled,
    in_portions,
    json_answer,
    next_page,
    parse_time_cursor,
)
from corral.server.services import Services, Svc
from corral.server.views import NameLookup, artifact_view, host_verdict, run_detail, run_view
from corral.store.store import write_together
from corral.store.transaction import Tx
from corral.wire import runs as wire
from corral.wire.artifacts import ArtifactPage
from corral.wire.faults import Form
from corral.wire.spec.run_file import RunSpec

router = APIRouter(prefix="/v1", tags=["runs"], route_class=LargeBodyRoute)
# How many of a list are read at a time: the metrics of a run may have 200 KiB, its spec 1 MiB.
_RUNS, _SPECS = 250, 16
_LIVE = tuple(state for state in RunState if state not in FINAL)
_ENDED_BADLY = (RunState.FAILED, RunState.CANCELLED)
IdBeginning = Annotated[str, Form(r"^[a-z0-9-]{1,14}$", "the beginning of a run's id, as r-3gj5")]
Act = Callable[[Tx, Run], wire.ActionResult]


@router.post("/runs", status_code=201, responses={200: {"model": wire.SubmitAnswer}})
async def submit_runs(
    body: wire.SubmitRequest, caller: User, svc: Svc, request: Request, response: Response
) -> wire.SubmitAnswer:
    """Accept one run or a group, all or none. A dry run stores nothing and says where it could run."""
    if body.dry_run:
        response.status_code = 200
    # What the framework read is in memory already.
    return await submit_or_try(body, caller, svc, body_bytes=len(await request.body()))


async def submit_or_try(
    body: wire.SubmitRequest, caller: Caller, svc: Services, *, body_bytes: int
) -> wire.SubmitAnswer:
    caller.check_one_project([spec.project for spec in body.runs], of="submission")
    build = partial(_new_runs, body.runs, svc.policy)
    runs = await svc.in_thread(build) if body_bytes > SMALL_BYTES else build()
    if (refused := await svc.placer.refusals(*{run.requirements for run in runs})) is not None:
        raise refused
    # All of what is stored of the request.
    text = "\n".join([*(run.spec for run in runs), body.group or "", body.request_id])
    if body.dry_run:
        return await svc.store.read(lambda tx: _dry_run(tx, svc, runs[0], text))

    def unit(tx: Tx) -> SubmitResult:
        secrets.refuse_exposed(tx, svc.redactor, runs[0].run.project, text, what="the run")
        return submit(
            tx,
            runs,
            request_id=body.request_id,
            group=body.group,
            principal=caller.actor,
            now=svc.clock.now(),
            max_running=body.max_running,
        )

    done = await svc.store.write(unit)
    return wire.SubmitAnswer(ids=list(done.ids), group_id=done.group_id)


def _new_runs(specs: Sequence[RunSpec], policy: ServerPolicy) -> list[NewRun]:
    runs = [new_run(spec) for spec in specs]
    for run in runs:
        refuse_large_spec(run.run.name, run.spec)
    refuse_models(runs, policy.models)
    return runs


def _dry_run(tx: Tx, svc: Services, new: NewRun, text: str) -> wire.SubmitAnswer:
    run, need = new.run, new.requirements
    secrets.refuse_exposed(tx, svc.redactor, run.project, text, what="the run")
    if (refused := never_starts(tx, run, need)) is not None:
        raise refused
    asked = WhyQuestion(need, run.project, run.name)
    now, board = svc.clock.now(), svc.board
    found = standings(tx, asked, now=now, policy=svc.policy, shapes=board.shapes, roster=board.roster)
    return wire.SubmitAnswer(ids=[], hosts=[host_verdict(s) for s in found])


@router.get("/runs", response_model=wire.RunPage)
async def list_runs(
    caller: User,
    svc: Svc,
    project: str | None = None,
    state: Annotated[list[RunState] | None, Query(max_length=20)] = None,
    group: str | None = None,
    name: str | None = None,
    label: wire.LabelText | None = None,
    schedule: str | None = None,
    mine: bool = False,
    params: bool = False,
    instances: bool = True,
    prefix: IdBeginning | None = None,
    cursor: str | None = None,
    limit: Limit = 50,
) -> Response:
    """Newest first. `mine` are those that the caller submitted; with `params` each says what it was given.

    `instances=false` leaves out the instances of functions, which are runs of kind `service`. `prefix` finds
    runs by how their ids begin, in the order of ids; beside it only `project` and `limit` count.
    """
    if prefix is not None:
        project = caller.narrowed(project)
        return json_answer(await svc.store.read(lambda tx: _beginning(tx, svc, prefix, project, limit)))
    where = RunFilter(
        project=caller.narrowed(project),
        states=tuple(state or ()),
        group=group,
        name=name,
        label=_label(label),
        schedule=schedule,
        submitted_by=caller.actor if mine else None,
    )
    after = parse_time_cursor(cursor, "r", RunId)

    def unit(tx: Tx) -> bytes:
        names, one_group = NameLookup(tx), with_one_group(tx, where)
        listed = one_group if instances else without_instances(one_group)

        def read(last: tuple[float, RunId] | None, count: int) -> list[Run]:
            return tx.runs.page(listed, after=last, limit=count)

        def view(row: tuple[Run, Settings | None]) -> wire.RunView:
            shown = run_view(tx, row[0], names, now=svc.clock.now())
            return shown if row[1] is None else shown.model_copy(update={"params": row[1]})

        runs = in_portions(
            read, lambda run: (run.created_at, run.id), after=after, limit=limit, portion=_RUNS
        )
        rows = _with_params(tx, runs) if params else ((run, None) for run in runs)
        page = filled(rows, limit, view)
        hidden = None
        if not instances:
            oldest = page.last[0] if page.full and page.last else None
            hidden = hidden_instances(tx, one_group, after=after, oldest=oldest, count_to=wire.MOST_HIDDEN)
        return page.with_next(lambda row: by_time(row[0]), hidden=hidden)

    return json_answer(await svc.store.read(unit))


def _beginning(tx: Tx, svc: Services, prefix: str, project: str | None, limit: int) -> str:
    names, now = NameLookup(tx), svc.clock.now()
    items = [run_view(tx, run, names, now=now) for run in tx.runs.beginning(prefix, project, limit)]
    return wire.RunPage(items=items).model_dump_json()


def _with_params(tx: Tx, runs: Iterator[Run]) -> Iterator[tuple[Run, Settings]]:
    while some := list(islice(runs, _SPECS)):
        found = tx.runs.settings(run.id for run in some)
        yield from ((run, stored_settings(*found[run.id])) for run in some)


@router.post("/runs/cancel")
async def cancel_runs(body: wire.CancelManyRequest, caller: User, svc: Svc) -> wire.ManyAnswer:
    """Cancel every run that the filter finds; those that have ended are left out."""

    def act(tx: Tx, run: Run) -> wire.ActionResult:
        check_cancel(run)
        if not body.dry_run:
            run = _cancel(tx, run, body.reason, caller, svc)
        return wire.ActionResult(id=run.id, name=run.name, state=run.state)

    return await _each(svc, caller, body, _LIVE, act)


@router.post("/runs/requeue")
async def requeue_runs(body: wire.RequeueManyRequest, caller: User, svc: Svc) -> wire.ManyAnswer:
    """Queue every run that the filter finds again, with those that ended because of it.

    Without states, those that failed or were cancelled. One that has a next generation is left alone.
    """

    def act(tx: Tx, run: Run) -> wire.ActionResult:
        request_id = digest_of([body.request_id, run.id])[:32]
        if body.dry_run or tx.runs.submission(caller.actor, request_id) is None:
            check_requeue(tx, run)
        new: Sequence[str] = ()
        if not body.dry_run:
            now, actor = svc.clock.now(), caller.actor
            new = requeue_with_children(tx, run.id, request_id=request_id, principal=actor, now=now).ids
        return wire.ActionResult(id=run.id, name=run.name, state=run.state, new=list(new))

    return await _each(svc, caller, body, _ENDED_BADLY, act)


@router.post("/runs/remove")
async def remove_runs(body: wire.RemoveManyRequest, caller: User, svc: Svc) -> wire.ManyAnswer:
    """Remove every run that the filter finds and that has ended, with its logs and artifacts."""
    by = caller.by(svc.clock)

    def act(tx: Tx, run: Run) -> wire.ActionResult:
        check_remove(tx, run)
        size = bytes_of(tx, run.id)
        if not body.dry_run:
            remove(tx, run.id, by=by)
        return wire.ActionResult(id=run.id, name=run.name, state=run.state, bytes=size)

    before = None if body.older_than_s is None else by.now - body.older_than_s
    return await _each(svc, caller, body, tuple(FINAL), act, ended_before=before)


async def _each(
    svc: Services,
    caller: Caller,
    body: wire.ManyRequest,
    states: tuple[RunState, ...],
    act: Act,
    *,
    ended_before: float | None = None,
) -> wire.ManyAnswer:
    which = body.which
    where = RunFilter(
        project=caller.narrowed(which.project),
        states=tuple(which.states) or states,
        group=which.group,
        name=which.name,
        label=_label(which.label),
        schedule=which.schedule,
        ended_before=ended_before,
    )
    after = parse_time_cursor(body.cursor, "r", RunId)

    def found(tx: Tx) -> Sequence[Run]:
        if which.ids:
            return [read_run(tx, find_run(tx, name, caller)) for name in which.ids]
        return tx.runs.page(with_one_group(tx, where), after=after, limit=body.limit)

    runs = await svc.store.read(found)
    results: Sequence[wire.ActionResult | Exception]
    if body.dry_run:
        results = await svc.store.read(lambda tx: [_tried(act, tx, run) for run in runs])
    else:
        units = [partial(_locked, act, run.id) for run in runs]
        results = await write_together(svc.store, lambda tx: tx.runs.lock_all(run.id for run in runs), units)
    done = [_answered(run, result) for run, result in zip(runs, results, strict=True)]
    return wire.ManyAnswer(
        done=[one for one in done if isinstance(one, wire.ActionResult)],
        skipped=[one for one in done if isinstance(one, wire.ActionRefusal)],
        next=None if which.ids else next_page(runs, body.limit, by_time),
    )


def _label(text: str | None) -> tuple[str, str] | None:
    name, _, value = (text or "").partition("=")
    return None if text is None else (name, value)


def _locked(act: Act, run_id: RunId, tx: Tx) -> wire.ActionResult:
    run = tx.runs.lock(run_id)
    if run is None:
        raise NotFound("was removed meanwhile")
    return act(tx, run)


def _tried(act: Act, tx: Tx, run: Run) -> wire.ActionResult | CorralError:
    try:
        return act(tx, run)
    except CorralError as error:
        return error


def _answered(run: Run, result: wire.ActionResult | Exception) -> wire.ActionResult | wire.ActionRefusal:
    """A run that refuses says why, and keeps no other from its turn."""
    if isinstance(result, CorralError) and not isinstance(result, StoreUnavailable):
        return wire.ActionRefusal(id=run.id, why=result.message)
    if isinstance(result, Exception):
        raise result
    return result


@router.get("/runs/{run}", response_model=wire.RunDetail)
async def get_run(run: str, caller: User, svc: Svc) -> Response:
    """One run: its spec, its attempts, how it stands and why it ended."""

    def unit(tx: Tx) -> str:
        return run_detail(tx, read_run(tx, find_run(tx, run, caller)), now=svc.clock.now()).model_dump_json()

    return json_answer(await svc.store.read(unit))


@router.get("/runs/{run}/artifacts")
async def run_artifacts(run: str, caller: User, svc: Svc) -> ArtifactPage:
    """Everything that the run made, checkpoints included."""
    return await svc.store.read(lambda tx: _artifacts(tx, run, caller, None))


@router.get("/runs/{run}/checkpoints")
async def run_checkpoints(run: str, caller: User, svc: Svc) -> ArtifactPage:
    """The run's checkpoints."""
    return await svc.store.read(lambda tx: _artifacts(tx, run, caller, ArtifactKind.CHECKPOINT))


def _artifacts(tx: Tx, text: str, caller: Caller, kind: ArtifactKind | None) -> ArtifactPage:
    names = NameLookup(tx)
    found = tx.artifacts.of_run(find_run(tx, text, caller))
    return ArtifactPage(items=[artifact_view(a, names) for a in found if kind in (None, a.kind)])


@router.get("/runs/{run}/why", response_model=wire.WhyAnswer)
async def why(run: str, caller: User, svc: Svc) -> Response:
    """For each host: eligible, or every reason why not."""

    def unit(tx: Tx) -> str:
        found = read_run(tx, find_run(tx, run, caller))
        now = svc.clock.now()
        need = svc.board.shapes.get(tx, found.shape)
        asked = WhyQuestion(need, found.project, found.name, found)
        hosts = standings(
            tx, asked, now=now, policy=svc.policy, shapes=svc.board.shapes, roster=svc.board.roster
        )
        held_back = held_by_quota(tx, svc.board, found, policy=svc.policy)
        if held_back is None and need.executors and found.state is RunState.QUEUED:
            coming = coming_of(tx, svc.board, found.project)
            held_back = svc.board.held_back(tx, found, svc.policy, coming=coming)
        full, is_placed = group_is_full(tx, found), need.is_placed
        told = summary(found, hosts, now=now, held_back=held_back, group=full, is_placed=is_placed)
        if held_back is None:
            placed = placement_summary(tx, found, need, now=now)
            told = placed or gang_summary(tx, svc.board, found, hosts) or told
        notes = queue_notes(tx, svc.board, found, now=now, policy=svc.policy, told=told)
        answer = wire.WhyAnswer(
            run_id=found.id,
            state=found.state,
            summary=told,
            hosts=[host_verdict(s) for s in hosts],
            queue=[
                *notes,
                *gang_notes(tx, svc.board, found, now=now, policy=svc.policy),
                *placement_notes(tx, found, need, policy=svc.policy),
            ],
        )
        # Rendered here and not in the event loop: with a thousand hosts it is long.
        return answer.model_dump_json()

    return Response(await svc.store.read(unit), media_type="application/json")


@router.post("/runs/{run}/cancel")
async def cancel_run(run: str, body: wire.CancelRequest, caller: User, svc: Svc) -> wire.RunView:
    """Cancel a run: at once if it waits, otherwise its worker is told to stop it."""

    def unit(tx: Tx) -> wire.RunView:
        found = read_run(tx, find_run(tx, run, caller))
        cancelled = _cancel(tx, found, body.reason, caller, svc)
        return run_view(tx, cancelled, NameLookup(tx), now=svc.clock.now())

    return await svc.store.write(unit)


def _cancel(tx: Tx, run: Run, reason: str, caller: Caller, svc: Services) -> Run:
    secrets.refuse_exposed(tx, svc.redactor, run.project, reason, what="the reason")
    return cancel(tx, run.id, reason=reason, actor=caller.actor, now=svc.clock.now(), policy=svc.policy)


@router.post("/runs/{run}/requeue", status_code=201)
async def requeue_run(run: str, body: wire.RequeueRequest, caller: User, svc: Svc) -> wire.SubmitAnswer:
    """A final run again, as the next generation with a new id."""
    again = requeue_with_children if body.with_children else requeue
    terms = {"request_id": body.request_id, "principal": caller.actor}
    done = await svc.store.write(
        lambda tx: again(tx, find_run(tx, run, caller), **terms, now=svc.clock.now())
    )
    return wire.SubmitAnswer(ids=list(done.ids))


@router.post("/runs/{run}/hold")
async def hold_run(run: str, caller: User, svc: Svc) -> wire.RunView:
    """Keep a run that waits from starting until it is released."""
    return await _act(hold, run, caller, svc)


@router.post("/runs/{run}/release")
async def release_run(run: str, caller: User, svc: Svc) -> wire.RunView:
    """Let a run go that somebody held; it is queued unless something else holds it."""
    return await _act(let_go, run, caller, svc)


async def _act(act: Callable[..., Run], text: str, caller: Caller, svc: Services) -> wire.RunView:
    def unit(tx: Tx) -> wire.RunView:
        now = svc.clock.now()
        done = act(tx, find_run(tx, text, caller), actor=caller.actor, now=now)
        return run_view(tx, done, NameLookup(tx), now=now)

    return await svc.store.write(unit)


@router.delete("/runs/{run}")
async def remove_run(run: str, caller: User, svc: Svc) -> wire.RemovedRun:
    """Remove a run that has ended, with its logs and the artifacts that nobody else uses."""

    by = caller.by(svc.clock)
    done = await svc.store.write(lambda tx: remove(tx, find_run(tx, run, caller), by=by))
    return wire.RemovedRun(id=done.run_id, artifacts=done.artifacts, kept=list(done.kept))
