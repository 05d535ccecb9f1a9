"""Schedules of functions: they come and go with the version that serves."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from corral.core.audit import Author
from corral.core.calls.accept import accept, new_call
from corral.core.calls.transitions import cancel
from corral.core.policy import ServerPolicy
from corral.core.runs.submit import SubmitResult
from corral.core.schedules import manage
from corral.core.schedules.cron import check_times
from corral.core.schedules.work import SubmitKey
from corral.domain.calls import CALL_FINAL, CallOptions, Payload
from corral.domain.canonical import canonical
from corral.domain.endpoints import Endpoint, EndpointVersion
from corral.domain.errors import Conflict, NotFound
from corral.domain.ids import CallId, EndpointId, RunId, ScheduleId, new_schedule_id
from corral.domain.schedules import MissedTimes, Overlap, Schedule
from corral.store.transaction import Tx


class CallOrder(NamedTuple):
    """One call of a deployed function, with the arguments that came with the deploy."""

    endpoint_id: EndpointId
    function: str
    args: Payload

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> CallOrder:
        """From the spec of a stored schedule."""
        data = base64.b64decode(table["body"])
        args = Payload(table["format"], data, None, len(data))
        return cls(EndpointId(table["endpoint"]), table["function"], args)

    def check(self, tx: Tx) -> None:
        """The deploy that brings the schedule brings the function too."""

    def keep(self, tx: Tx, schedule_id: ScheduleId) -> None:
        """The endpoint keeps its own code."""

    def was_made(self, tx: Tx, ask: SubmitKey) -> bool:
        return tx.calls.by_key(self.endpoint_id, ask.request_id) is not None

    def make(self, tx: Tx, schedule: Schedule, ask: SubmitKey, *, now: float) -> SubmitResult:
        endpoint = tx.endpoints.get(self.endpoint_id)
        version = None if endpoint is None else tx.endpoints.version(endpoint.id, endpoint.current)
        if endpoint is None or version is None:
            raise NotFound("its function is not deployed any more")
        table = json.loads(version.functions).get(self.function, {})
        options = CallOptions.read(json.dumps(table.get("options", {})))
        new = new_call(self.function, self.args, options, submitted_by=ask.principal, key=ask.request_id)
        # With a fresh `called_at`, `accept` does not write the endpoint's row, which is not locked here.
        (call,) = accept(tx, endpoint._replace(called_at=now), [new], now=now)
        return SubmitResult((RunId(call.id),), None)

    def unfinished(self, tx: Tx, schedule: Schedule) -> Sequence[RunId]:
        last = None if schedule.last_run is None else tx.calls.get(CallId(schedule.last_run))
        return [] if last is None or last.state in CALL_FINAL else [RunId(last.id)]

    def cancel(
        self, tx: Tx, schedule: Schedule, made: Sequence[RunId], *, now: float, policy: ServerPolicy
    ) -> None:
        for call_id in made:
            cancel(tx, CallId(call_id), now=now)


def of_endpoint(tx: Tx, endpoint: Endpoint) -> Schedule | None:
    """Its schedule, if it has one; a schedule of the same name may belong to something else."""
    found = tx.schedules.by_name(endpoint.project, endpoint.name)
    return found if found is not None and _endpoint_of(found) == endpoint.id else None


def check(tx: Tx, endpoint: Endpoint, version: EndpointVersion, *, now: float) -> None:
    """Before a deploy: InvalidInput for times that never come, Conflict if the name is taken."""
    wanted = _wanted(endpoint, version, now)
    if wanted is None:
        return
    check_times(wanted.cron, wanted.every_s, wanted.timezone, now)
    found = tx.schedules.by_name(endpoint.project, endpoint.name)
    if found is not None and _endpoint_of(found) != endpoint.id:
        raise Conflict(
            f"project {endpoint.project} has another schedule named {endpoint.name}",
            hint=f"Remove it with `corral schedules rm {endpoint.name}`, or give the function another name.",
        )


def keep(tx: Tx, endpoint: Endpoint, version: EndpointVersion | None, *, now: float) -> None:
    """Bring the endpoint's schedule in line with the version that serves; None ends it."""
    mine = of_endpoint(tx, endpoint)
    by = Author(endpoint.created_by if version is None else version.created_by, "", now)
    wanted = None if version is None or endpoint.stopped or endpoint.live else _wanted(endpoint, version, now)
    if wanted is None:
        if mine is not None:
            manage.remove(tx, mine.id, by=by)
        return
    if mine is None and tx.schedules.by_name(endpoint.project, endpoint.name) is not None:
        # The name was taken after the deploy was checked.
        return
    if mine is not None and _demand(mine) == _demand(wanted):
        return
    order = CallOrder.read(json.loads(wanted.spec)["call"])
    manage.replace(tx, wanted, order, by=by)


def _demand(one: Schedule) -> tuple[object, ...]:
    return one.spec, one.cron, one.every_s, one.timezone, one.missed, one.overlap


def _endpoint_of(schedule: Schedule) -> str | None:
    call = json.loads(schedule.spec).get("call")
    return None if call is None else call["endpoint"]


def _wanted(endpoint: Endpoint, version: EndpointVersion, now: float) -> Schedule | None:
    """At most one function of an endpoint has a schedule: methods of classes have none."""
    for name, table in json.loads(version.functions).items():
        asked = table.get("schedule")
        if asked is None:
            continue
        args = table["schedule_args"]
        call = {"endpoint": endpoint.id, "function": name, "format": args["format"], "body": args["body"]}
        return Schedule(
            id=new_schedule_id(),
            project=endpoint.project,
            name=endpoint.name,
            spec=canonical({"call": call}),
            cron=asked["cron"],
            every_s=asked["every"],
            timezone=asked["timezone"],
            missed=MissedTimes(asked["missed"]),
            overlap=Overlap(asked["overlap"]),
            created_at=now,
            created_by=version.created_by,
        )
    return None
