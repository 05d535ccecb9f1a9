"""Routes: schedules, which make runs or calls again and again."""

from __future__ import annotations

import json
from collections.abc import Callable

from fastapi import APIRouter, Response
from pydantic import ValidationError

from corral.core import secrets
from corral.core.audit import Author
from corral.core.policy import ServerPolicy
from corral.core.runs.model_policy import refuse_models
from corral.core.schedules import manage
from corral.core.schedules.fire import following, run_now
from corral.core.schedules.function_schedules import CallOrder
from corral.core.schedules.work import ScheduledRuns, ScheduledWork, WorkOf
from corral.domain.errors import SPEC_HINT, Ambiguous, NotFound, TooLarge
from corral.domain.ids import ScheduleId, new_schedule_id
from corral.domain.schedules import MissedTimes, Overlap, Schedule
from corral.server.auth import Caller, User
from corral.server.bodies.large import LargeBodyRoute
from corral.server.new_runs import new_run, refuse_large_spec
from corral.server.pages import Limit, filled, in_portions, json_answer, parse_id_cursor
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.base import explain
from corral.wire.runs import SubmitAnswer
from corral.wire.schedules import RunNowRequest, ScheduleDetail, SchedulePage, ScheduleRequest, ScheduleView
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.submitted import without_instances

router = APIRouter(prefix="/v1", tags=["schedules"], route_class=LargeBodyRoute)
_TIMES_SHOWN = 5
# How many of a list are read at a time: what one submits may have megabytes.
_PORTION = 8
# Where the schedule is given by a name that several projects may have.
InProject = str | None


@router.post("/schedules", status_code=201)
async def add_schedule(body: ScheduleRequest, caller: User, svc: Svc) -> ScheduleView:
    """Make the runs again and again, at the schedule's times."""
    caller.check_one_project([spec.project for spec in body.runs], of="schedule")
    stored, order = await svc.in_thread(lambda: _new_schedule(body, svc.policy))
    put = manage.replace if body.replace else manage.add

    def unit(tx: Tx) -> ScheduleView:
        by = caller.by(svc.clock)
        made = _schedule(body, stored, by)
        secrets.refuse_exposed(tx, svc.redactor, made.project, stored + body.name, what="the schedule")
        return _view(put(tx, made, order, by=by))

    return await svc.store.write(unit)


def _new_schedule(body: ScheduleRequest, policy: ServerPolicy) -> tuple[str, ScheduledRuns]:
    """What is stored of it, and what it makes; TooLarge if that is more than is read again and again."""
    runs = [new_run(spec) for spec in body.runs]
    for run in runs:
        refuse_large_spec(run.run.name, run.spec)
    refuse_models(runs, policy.models)
    stored = body.model_dump_json(include={"runs", "group", "max_running"})
    size = len(stored.encode())
    if size > policy.schedule_bytes:
        raise TooLarge(
            f"the runs of {body.name} have {size} bytes as JSON, {policy.schedule_bytes} at most are taken",
            hint="Put what is large into a file of the code, or make several schedules.",
        )
    return stored, ScheduledRuns(runs, body.group, body.max_running)


@router.get("/schedules", response_model=SchedulePage)
async def list_schedules(
    caller: User, svc: Svc, project: str | None = None, cursor: str | None = None, limit: Limit = 50
) -> Response:
    """All schedules that the caller sees."""
    after = parse_id_cursor(cursor, "s", ScheduleId)

    def unit(tx: Tx) -> bytes:
        def read(last: ScheduleId | None, count: int) -> list[Schedule]:
            return tx.schedules.page(caller.narrowed(project), last, count)

        rows = in_portions(read, lambda one: one.id, after=after, limit=limit, portion=_PORTION)
        return filled(rows, limit, _view).with_next(lambda last: last.id)

    return json_answer(await svc.store.read(unit))


@router.get("/schedules/{schedule}", response_model=ScheduleDetail)
async def get_schedule(schedule: str, caller: User, svc: Svc, project: InProject = None) -> Response:
    """One schedule by its id or name, with what it submits and its next times."""

    def unit(tx: Tx) -> str:
        found = _find(tx, schedule, project, caller)
        stored = json.loads(found.spec)
        return ScheduleDetail(
            **_view(found).model_dump(),
            runs=stored.get("runs", []),
            function=stored["call"]["function"] if "call" in stored else None,
            group=stored.get("group"),
            max_running=stored.get("max_running"),
            times=_times(found),
        ).model_dump_json()

    return json_answer(await svc.store.read(unit))


@router.post("/schedules/{schedule}/pause")
async def pause_schedule(schedule: str, caller: User, svc: Svc, project: InProject = None) -> ScheduleView:
    """No more runs until it is resumed."""
    return await _act(manage.pause, schedule, project, caller, svc)


@router.post("/schedules/{schedule}/resume")
async def resume_schedule(schedule: str, caller: User, svc: Svc, project: InProject = None) -> ScheduleView:
    """Go on from its next time."""
    return await _act(manage.resume, schedule, project, caller, svc)


@router.post("/schedules/{schedule}/run", status_code=201)
async def run_schedule_now(
    schedule: str, body: RunNowRequest, caller: User, svc: Svc, project: InProject = None
) -> SubmitAnswer:
    """Make its runs now, beside its times."""
    found = await svc.store.read(lambda tx: _find(tx, schedule, project, caller))
    work, by = await read_ahead(found, svc), caller.by(svc.clock)
    done = await svc.store.write(lambda tx: run_now(tx, found.id, work, request_id=body.request_id, by=by))
    return SubmitAnswer(ids=list(done.ids), group_id=done.group_id)


@router.delete("/schedules/{schedule}")
async def remove_schedule(schedule: str, caller: User, svc: Svc, project: InProject = None) -> ScheduleView:
    """Make no more runs; those that it made stay."""
    return await _act(manage.remove, schedule, project, caller, svc)


async def _act(
    act: Callable[..., Schedule], text: str, project: str | None, caller: Caller, svc: Services
) -> ScheduleView:
    by = caller.by(svc.clock)
    return _view(await svc.store.write(lambda tx: act(tx, _find(tx, text, project, caller).id, by=by)))


def work_of(stored: str) -> ScheduledWork:
    """What a schedule keeps as JSON, as what it makes."""
    table = json.loads(stored)
    if "call" in table:
        return CallOrder.read(table["call"])
    try:
        specs = without_instances([RunSpec.model_validate_json(json.dumps(one)) for one in table["runs"]])
    except ValidationError as error:
        # Stored by another version of Corral.
        raise explain(RunSpec, error, what="what the schedule submits", hint=SPEC_HINT) from None
    return ScheduledRuns([new_run(spec) for spec in specs], table.get("group"), table.get("max_running"))


async def read_ahead(schedule: Schedule, svc: Services) -> WorkOf:
    """What the schedule makes, read before the transaction that needs it, and in a thread.

    There it is read again only if the schedule was replaced meanwhile.
    """

    def read() -> ScheduledWork | Exception:
        try:
            return work_of(schedule.spec)
        except Exception as error:  # noqa: BLE001 - raised in the transaction, which is this schedule's own
            return error

    known = await svc.in_thread(read)

    def work(one: Schedule) -> ScheduledWork:
        if one.spec != schedule.spec:
            return work_of(one.spec)
        if isinstance(known, Exception):
            raise known
        return known

    return work


def _find(tx: Tx, text: str, project: str | None, caller: Caller) -> Schedule:
    ids = tx.schedules.find(text, caller.narrowed(project), 3)
    found = [one for schedule_id in ids if (one := tx.schedules.get(schedule_id)) is not None]
    if not found:
        raise NotFound(f"there is no schedule {text[:80]!r}", hint="List them with `corral schedules ls`.")
    if len(found) > 1:
        raise Ambiguous(
            f"more than one project has a schedule {text}: {', '.join(one.project for one in found)}",
            hint="Name the project, or give the schedule's id.",
        )
    return found[0]


def _view(schedule: Schedule) -> ScheduleView:
    table = schedule._asdict()
    return ScheduleView(**{**table, "every": table.pop("every_s")})


def _schedule(body: ScheduleRequest, stored: str, by: Author) -> Schedule:
    when = body.schedule
    return Schedule(
        id=new_schedule_id(),
        project=body.runs[0].project,
        name=body.name,
        spec=stored,
        cron=when.cron,
        every_s=when.every,
        timezone=when.timezone,
        missed=MissedTimes(when.missed),
        overlap=Overlap(when.overlap),
        created_at=by.now,
        created_by=by.actor,
    )


def _times(schedule: Schedule) -> list[float]:
    times: list[float] = []
    at = None if schedule.paused else schedule.next_at
    while at is not None and len(times) < _TIMES_SHOWN:
        times.append(at)
        at = following(schedule._replace(next_at=at), at)
    return times
