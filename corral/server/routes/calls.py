"""Routes: making calls, following them, and what instances say of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from corral.core.calls import lifecycle as core
from corral.core.calls.lifecycle import CallOptions, CallOutcome, NewCall
from corral.core.endpoints.deploy import became_ready
from corral.core.leases.fence import fence
from corral.core.wakeups import wait_for
from corral.domain.calls import CALL_FINAL, CallFilter, CallPool, CallRecord, CallState, Payload, QueuedCall
from corral.domain.canonical import digest_of
from corral.domain.endpoints import Endpoint, VersionState
from corral.domain.errors import Forbidden, InvalidInput, NotFound
from corral.domain.ids import CallId, EndpointId, HostId, LeaseId, RunId, is_id
from corral.domain.leases import LeaseKey
from corral.domain.runs import Run
from corral.domain.tokens import Token
from corral.server.authorization import Caller, Epoch, LeasePath, Limit, OwnHost, User
from corral.server.call_waits import waits_for
from corral.server.cursors import parse_time_cursor, time_cursor
from corral.server.dispatch import REFILL, InstancePoll
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.calls import (
    CallPage,
    CallRequest,
    CallsAnswer,
    CallsRequest,
    CallView,
    ChunkPage,
    ChunkView,
    CollectRequest,
    LeaseCallsAnswer,
    LeaseCallsRequest,
    NestedAnswer,
    NestedRequest,
    OutcomeBody,
)
from corral.wire.endpoints import FunctionTable
from corral.wire.payloads import PayloadBody, payload_table

router = APIRouter(prefix="/v1", tags=["functions"])
_LOOK_S = 0.05
# How long finished calls are gathered before they are told together, for each of those that are waited for.
_GATHER_S = 0.00005
# A call that was given is written down as such after this long, unless it has ended.
_WRITE_AFTER_S = 0.05
# A call that its instance still does not know of after this long was given in an answer that was lost.
LOST_AFTER_S = 30.0

Gone = Callable[[], Awaitable[bool]]
_dumps = json.JSONEncoder(separators=(",", ":")).encode


async def call_path(call_id: Annotated[str, Path()]) -> CallId:
    if not is_id(call_id, "c"):
        raise NotFound(f"not a call id: {call_id[:80]!r}")
    return CallId(call_id)


@router.post("/calls", status_code=202, response_model=CallsAnswer)
async def make_calls(body: CallsRequest, caller: User, svc: Svc) -> Response:
    """Accept calls, all or none, durably. With `wait_s`, the answer comes when all have ended."""
    text = await make_as_json(body, caller, svc)
    return Response(text, status_code=202, media_type="application/json")


async def make_as_json(body: CallsRequest, caller: Caller, svc: Services) -> str:
    return _as_json(await accept(body, caller, svc), svc)


def _as_json(calls: Iterable[CallRecord], svc: Services) -> str:
    """A `CallsAnswer`, written down without a model of each: there may be thousands a second."""
    return _dumps({"calls": [_table(call, svc) for call in calls]})


async def accept(body: CallsRequest, caller: Caller, svc: Services) -> list[CallRecord]:
    caller.check_project(body.project)
    new = [_new_call(ask) for ask in body.calls]
    who = core.CallOrigin(caller.actor, CallId(body.parent) if body.parent else None)

    def unit(tx: Tx) -> list[CallRecord]:
        endpoint = _endpoint(tx, body.project, body.endpoint)
        _check_functions(tx, endpoint, body.version, new, svc)
        return core.accept(
            tx, endpoint, body.version, new, caller=who, now=svc.clock.now(), early=svc.store.alone
        )

    # Who waits for the outcome need not be told of the acceptance before.
    made = await accepted(unit, svc, patient=body.wait_s > 0)
    if not body.wait_s:
        return made
    return await wait_all(made, body.wait_s, svc, fresh=True)


async def accepted(
    unit: Callable[[Tx], list[CallRecord]], svc: Services, *, patient: bool
) -> list[CallRecord]:
    """Written down, and in memory for whoever is given them. The unit accepts them, early if it can be."""
    made: list[CallRecord] = []
    if not svc.store.alone:
        made = await svc.store.write(unit)
        svc.dispatch.keep(call for call in made if call.state is CallState.QUEUED)
        return made

    def kept(tx: Tx) -> None:
        made[:] = unit(tx)
        # An instance may be given them before they can be read.
        svc.dispatch.keep(call for call in made if call.state is CallState.QUEUED)

    try:
        await svc.store.write(kept, patient=patient)
    except BaseException:
        # One that an instance has by now is looked up when the instance next speaks of it.
        for call in made:
            svc.dispatch.touched(call.id)
        raise
    return made


def _new_call(ask: CallRequest) -> NewCall:
    options = ask.options
    params = None if ask.params is None else _payload(ask.params, "params")
    if params is not None and params.body is None:
        raise InvalidInput(
            "a class's parameters are larger than 64 KiB", hint="Give what is large to a method."
        )
    return NewCall(
        function=ask.function,
        args=_payload(ask.args, "args"),
        key=ask.key,
        priority=ask.priority,
        options=CallOptions(**{**options.model_dump(), "retry_on": tuple(options.retry_on)}),
        pool=""
        if params is None or params.body is None
        else digest_of([params.format, params.body.hex()])[:16],
        params=params,
    )


def _payload(body: PayloadBody, place: str) -> Payload:
    try:
        return body.payload()
    except ValueError as error:
        raise InvalidInput(f"{place}: {error}") from None


def _endpoint(tx: Tx, project: str, name: str) -> Endpoint:
    found = tx.endpoints.by_name(project, name)
    if found is None:
        raise NotFound(f"project {project} has no endpoint {name!r}", hint="List them with `corral fn ls`.")
    return found


def _check_functions(tx: Tx, endpoint: Endpoint, number: int, new: Sequence[NewCall], svc: Services) -> None:
    known = svc.book.functions(tx, endpoint.id, number or endpoint.current)
    for one in new:
        if one.function not in known:
            raise core.unknown_function(one.function, list(known), endpoint.name)


async def wait_all(calls: list[CallRecord], wait_s: float, svc: Services, *, fresh: bool) -> list[CallRecord]:
    """As they are when all have ended, or when the time is over."""
    ended = {call.id: call for call in calls if call.state in CALL_FINAL}
    left = {call.id for call in calls} - set(ended)
    deadline = svc.clock.monotonic() + wait_s
    while left and not svc.hub.closing:
        found = await _any_ended(left, deadline - svc.clock.monotonic(), svc, fresh=fresh)
        if not found:
            break
        ended |= {call.id: call for call in found}
        left -= set(ended)
    return [ended.get(call.id, call) for call in calls]


async def _any_ended(
    ids: Collection[CallId], wait_s: float, svc: Services, *, fresh: bool
) -> list[CallRecord]:
    """Those that have ended, as soon as one has; none when the time is over.

    Of fresh ones, accepted here a moment ago, no end can have gone by unseen.
    """
    with svc.results.watch(ids) as watch:
        if found := svc.results.recent(ids):
            return found
        if not fresh and (found := await svc.store.read(lambda tx: tx.calls.ended(list(ids)))):
            return found
        if wait_s <= 0 or svc.hub.closing or not await wait_for(watch.news, wait_s):
            return []
        if len(ids) > 1:
            await asyncio.sleep(_GATHER_S * len(ids))
        unread = list(watch.touched - set(watch.ended))
        found = await svc.store.read(lambda tx: tx.calls.ended(unread)) if unread else []
        return [*watch.ended.values(), *found]


@router.post("/calls/collect", response_model=CallsAnswer)
async def collect(body: CollectRequest, caller: User, svc: Svc) -> Response:
    """Those of the calls that have ended, with their results; with `wait_s` as soon as there is one."""
    return Response(await collect_as_json(body, caller, svc), media_type="application/json")


async def collect_as_json(body: CollectRequest, caller: Caller, svc: Services) -> str:
    return _as_json(await _collected(body, caller, svc), svc)


async def _collected(body: CollectRequest, caller: Caller, svc: Services) -> list[CallRecord]:
    found = await _any_ended([CallId(one) for one in body.ids], body.wait_s, svc, fresh=False)
    return [call for call in found if caller.sees(call.project)]


@router.get("/calls")
async def list_calls(
    caller: User,
    svc: Svc,
    project: str | None = None,
    endpoint: str | None = None,
    state: CallState | Literal["dead"] | None = None,
    function: str | None = None,
    cursor: str | None = None,
    limit: Limit = 50,
) -> CallPage:
    """Newest first, without arguments and results. `dead` are those that failed or expired."""
    if project is not None:
        caller.check_project(project)
    after = parse_time_cursor(cursor, "c", CallId)

    def unit(tx: Tx) -> CallPage:
        within = project or caller.token.project
        found = None if endpoint is None else tx.endpoints.by_name(within or "default", endpoint)
        if endpoint is not None and found is None:
            raise NotFound(f"there is no endpoint {endpoint!r}", hint="List them with `corral fn ls`.")
        where = CallFilter(
            within,
            found.id if found else None,
            state.value if isinstance(state, CallState) else None,
            function,
            True if state == "dead" else None,
        )
        page = tx.calls.page(
            where, after=None if after is None else (after[0], CallId(after[1])), limit=limit
        )
        return CallPage(
            items=[_view(call, svc) for call in page],
            next=time_cursor(page[-1].created_at, page[-1].id) if len(page) == limit else None,
        )

    return await svc.store.read(unit)


@router.get("/calls/{call_id}")
async def get_call(
    call_id: str, caller: User, svc: Svc, wait_s: Annotated[float, Query(ge=0, le=60)] = 0
) -> CallView:
    """A call; with `wait_s` when it has ended or the time is over."""
    call = await svc.store.read(lambda tx: _seen(tx, call_id, caller))
    if wait_s and call.state not in CALL_FINAL:
        (call,) = await wait_all([call], wait_s, svc, fresh=False)
    if call.state in CALL_FINAL:
        return _view(call, svc)

    def unit(tx: Tx) -> CallView:
        # It may have begun meanwhile.
        now = tx.calls.get(call.id) or call
        return _view(now, svc).model_copy(update={"waiting": waits_for(tx, now, svc.clock.now())})

    return await svc.store.read(unit)


@router.get("/calls/{call_id}/chunks")
async def get_chunks(
    call_id: str,
    caller: User,
    svc: Svc,
    after: Annotated[int, Query(ge=0)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=60)] = 0,
    limit: Limit = 100,
) -> ChunkPage:
    """What a generator gave after number `after`; read on from the last number after any break."""

    def unit(tx: Tx) -> ChunkPage:
        call = _seen(tx, call_id, caller)
        found = tx.calls.chunks(call.id, after=after, limit=limit)
        last = found[-1].n if found else after
        return ChunkPage(
            chunks=[
                ChunkView(n=c.n, payload=PayloadBody(**payload_table(Payload(c.format, c.body, c.blob))))
                for c in found
            ],
            state=call.state,
            ended=call.forgotten or (call.state in CALL_FINAL and last >= call.chunks),
            error=_chunk_error(call, last),
        )

    deadline = svc.clock.monotonic() + wait_s
    while True:
        with svc.hub.watch(f"call:{call_id}") as news:
            page = await svc.store.read(unit)
            left = deadline - svc.clock.monotonic()
            if page.chunks or page.ended or left <= 0 or svc.hub.closing:
                return page
            if not await wait_for(news, left):
                return page


def _chunk_error(call: CallRecord, last: int) -> dict[str, Any] | None:
    """Why there is no more after `last`, if that was not all."""
    if call.forgotten and last < call.chunks:
        return {"type": "Expired", "message": f"what call {call.id} gave is not kept any more", "bases": []}
    if call.error is None or call.state not in CALL_FINAL:
        return None
    found: dict[str, Any] = json.loads(call.error)
    return found


@router.post("/calls/{call_id}/cancel")
async def cancel_call(call_id: str, caller: User, svc: Svc) -> CallView:
    """Whoever waits is told at once; an instance that runs it is told at its next word."""

    def unit(tx: Tx) -> CallRecord:
        return core.cancel(tx, _seen(tx, call_id, caller).id, now=svc.clock.now())

    return _view(await svc.store.write(unit), svc)


@router.post("/calls/{call_id}/retry")
async def retry_call(call_id: str, caller: User, svc: Svc) -> CallView:
    """Queue a call that ended without a result once more, under its own id."""

    def unit(tx: Tx) -> CallRecord:
        return core.retry(tx, _seen(tx, call_id, caller).id, now=svc.clock.now())

    call = await svc.store.write(unit)
    svc.dispatch.keep([call])
    return _view(call, svc)


def _seen(tx: Tx, text: str, caller: Caller) -> CallRecord:
    call = tx.calls.get(CallId(text)) if is_id(text, "c") else None
    if call is None or not caller.sees(call.project):
        raise NotFound(f"there is no call {text[:80]!r}", hint="List them with `corral calls ls`.")
    return call


def _view(call: CallRecord, svc: Services) -> CallView:
    return CallView.model_validate(_table(call, svc))


def _table(call: CallRecord, svc: Services) -> dict[str, Any]:
    """What `CallView` reads."""
    outcome = call.outcome
    empty = outcome is None or (outcome.body is None and outcome.blob is None)
    return {
        "id": call.id,
        "project": call.project,
        "endpoint": svc.book.name(call.endpoint_id),
        "function": call.function,
        "state": call.state.value,
        "priority": call.priority,
        "attempt": call.attempt,
        "lost": call.lost,
        "key": call.key,
        "parent": call.parent_id,
        "version": call.version,
        "created_at": call.created_at,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
        "ran_s": call.ran_s,
        "run": call.run_id,
        "chunks": call.chunks,
        "args_bytes": call.args_bytes,
        "result_bytes": call.result_bytes,
        "result": None if outcome is None or empty else payload_table(outcome),
        "error": None if call.error is None else json.loads(call.error),
        "submitted_by": call.submitted_by,
        "forgotten": call.forgotten,
    }


@router.post("/leases/{lease_id}/calls", response_model=LeaseCallsAnswer)
async def lease_calls(
    lease_id: LeasePath, epoch: Epoch, body: LeaseCallsRequest, host_id: OwnHost, svc: Svc, request: Request
) -> Response:
    """Outcomes in, work out: at once, or within `wait_s`."""
    text = await exchange_as_json(lease_id, epoch, body, host_id, svc, request.is_disconnected)
    return Response(text, media_type="application/json")


class _Instance(NamedTuple):
    run_id: RunId
    endpoint_id: EndpointId
    pools: tuple[CallPool, ...]
    # Of the calls that it says it has, those that it need not finish.
    over: tuple[str, ...]
    retired: bool
    # How often endpoints had changed when this was read: an old version must take no calls of a new one.
    changes: int


async def exchange_as_json(
    lease_id: LeaseId, epoch: int, body: LeaseCallsRequest, host_id: HostId, svc: Services, gone: Gone
) -> str:
    """A `LeaseCallsAnswer`."""
    told = [_told(one) for one in body.outcomes]
    changed: list[CallRecord] = []
    changes = svc.dispatch.changes

    def unit(tx: Tx) -> _Instance:
        now = svc.clock.now()
        changed.clear()
        me = core.check_lease(tx, lease_id, epoch, host_id=host_id, now=now, policy=svc.policy)
        endpoint_id = me.endpoint_id
        for part in body.chunks:
            given = [_payload(one, "chunks") for one in part.chunks]
            one = CallId(part.call_id)
            call = core.add_chunks(tx, one, part.attempt, lease_id, part.first, given, now=now)
            if call is not None and call.state in CALL_FINAL:
                changed.append(call)
        changed.extend(core.settle(tx, lease_id, me.run_id, endpoint_id, told, now=now))
        if body.want and svc.dispatch.is_time_to_look(lease_id, LOST_AFTER_S / 10):
            held = {*body.holding, *(one.call_id for one in told)}
            changed.extend(core.take_back(tx, lease_id, held, before=now - LOST_AFTER_S, now=now))
        if me.state is VersionState.ROLLING:
            became_ready(tx, endpoint_id, me.version, now=now)
        over = _over(tx, lease_id, body.holding, svc) if body.holding else []
        serves = me.state is VersionState.ROLLING or (not me.stopped and me.current == me.version)
        return _Instance(
            me.run_id,
            endpoint_id,
            tuple(CallPool(endpoint_id, n, me.pool) for n in ((me.version, 0) if serves else (me.version,))),
            tuple(over),
            not serves,
            changes,
        )

    svc.dispatch.told(one.call_id for one in told)
    me = await svc.store.write(unit)
    svc.dispatch.serves(lease_id, me.pools[0])
    svc.dispatch.settled(lease_id, [one.call_id for one in told])
    ended = [call for call in changed if call.state in CALL_FINAL]
    svc.results.ended(ended)
    svc.dispatch.forget(call.id for call in ended)
    again = [call for call in changed if call.state is CallState.QUEUED]
    svc.dispatch.keep(again)
    for call in again:
        svc.dispatch.heard(*core.place_of(call))
    if ended:
        # Whoever waits for them comes first.
        await asyncio.sleep(0)
    given = await _given(me, lease_id, body.want, svc)
    if not given and body.want and body.wait_s and not me.over and not me.retired:
        given = await _wait_for_calls(me, lease_id, body, svc, gone)
    idle = not given and not body.holding and _may_end(lease_id, me, svc)
    answer = {
        "calls": [_given_table(call) for call in given],
        "cancelled": me.over,
        "stop": (me.retired and not given) or idle,
    }
    return _dumps(answer)


def _over(tx: Tx, lease_id: LeaseId, holding: Sequence[str], svc: Services) -> list[str]:
    """Those that have ended; and, where calls begin early, those that could not be written down."""
    if not svc.store.alone:
        return [call.id for call in tx.calls.ended([CallId(one) for one in holding])]
    ids = svc.dispatch.doubtful(lease_id, holding)
    known = {str(call.id): call.state for call in tx.calls.many([CallId(one) for one in ids])} if ids else {}
    return [one for one in ids if one not in known or known[one] in CALL_FINAL]


def _may_end(lease_id: LeaseId, me: _Instance, svc: Services) -> bool:
    """Whether it has had nothing to do for long, and is not one of those that are always there."""
    if svc.dispatch.is_sent_away(lease_id):
        return svc.dispatch.is_idle(lease_id, 0.0)
    if not me.pools[0].key and svc.dispatch.count(me.endpoint_id) <= svc.book.least(me.endpoint_id):
        return False
    return svc.dispatch.is_idle(lease_id, svc.book.idle_s(me.endpoint_id))


def _told(body: OutcomeBody) -> CallOutcome:
    result = None if body.result is None else _payload(body.result, "result")
    return CallOutcome(
        CallId(body.call_id),
        body.attempt,
        result,
        body.error,
        body.ran_s,
        body.gave_back,
        body.cancelled,
        body.chunks,
    )


async def _wait_for_calls(
    me: _Instance, lease_id: LeaseId, body: LeaseCallsRequest, svc: Services, gone: Gone
) -> list[CallRecord]:
    deadline = svc.clock.monotonic() + body.wait_s
    poll = InstancePoll(lease_id, me.pools)
    try:
        while True:
            svc.dispatch.join(poll)
            if await gone():
                return []
            given = await _given(me, lease_id, body.want, svc)
            left = deadline - svc.clock.monotonic()
            over = me.changes != svc.dispatch.changes or svc.dispatch.is_sent_away(lease_id)
            if not body.holding:
                over = over or _may_end(lease_id, me, svc)
            if given or left <= 0 or svc.hub.closing or over:
                return given
            # One that may end is told so in time, and not when it would ask again.
            idle_in_s = svc.dispatch.idle_in_s(lease_id, svc.book.idle_s(me.endpoint_id))
            look = not body.holding and 0 < idle_in_s < left
            if not await wait_for(poll.woken, max(idle_in_s, _LOOK_S) if look else left) and not look:
                return []
    finally:
        svc.dispatch.leave(poll)


async def _given(me: _Instance, lease_id: LeaseId, want: int, svc: Services) -> list[CallRecord]:
    """The next calls for this instance, assigned to it."""
    if not want or not svc.dispatch.has(me.pools):
        return []
    for pool in svc.dispatch.to_fill(me.pools):
        svc.dispatch.fill(pool, await svc.store.read(partial(_waiting, pool)))
    if me.changes != svc.dispatch.changes:
        return []
    taken = [one.id for one in svc.dispatch.take(lease_id, me.pools, want)]
    calls: list[CallRecord] = []
    try:
        if taken:
            calls = await _still_queued(taken, me, lease_id, svc)
        return calls
    finally:
        given = {call.id for call in calls}
        for call_id in taken:
            if call_id not in given:
                svc.dispatch.let_go(call_id)


async def _still_queued(
    ids: list[CallId], me: _Instance, lease_id: LeaseId, svc: Services
) -> list[CallRecord]:
    """Of those that were taken for the lease, those that it is given."""
    # What another server may have changed since is read anew.
    alone = svc.store.alone
    unknown = [call_id for call_id in ids if not alone or svc.dispatch.recent(call_id) is None]
    found = await svc.store.read(lambda tx: tx.calls.many(unknown)) if unknown else []
    svc.dispatch.keep(found)
    known = {call.id: call for call in found}
    calls = [call for one in ids if (call := known.get(one) or svc.dispatch.recent(one)) is not None]
    calls = [call for call in calls if call.state is CallState.QUEUED]
    if not alone:
        wanted, now = [call.id for call in calls], svc.clock.now()
        got = await svc.store.write(
            lambda tx: tx.calls.assign(wanted, lease_id=lease_id, run_id=me.run_id, now=now)
        )
        calls = [call for call in calls if call.id in set(got)]
    svc.dispatch.give(lease_id, me.run_id, [call.id for call in calls], written=not alone)
    if alone and not svc.dispatch.writes_down:
        svc.dispatch.writes_down = True
        svc.in_background(_write_down_later(svc))
    return calls


async def _write_down_later(svc: Services) -> None:
    """Who has which call. Should it be lost before, the call is still queued, and its outcome is taken all
    the same; most have ended by then."""
    await asyncio.sleep(_WRITE_AFTER_S)
    svc.dispatch.writes_down = False
    for (lease_id, run_id), ids in svc.dispatch.unwritten().items():

        def unit(
            tx: Tx, lease_id: LeaseId = lease_id, run_id: RunId = run_id, ids: list[CallId] = ids
        ) -> None:
            left = svc.dispatch.to_write(lease_id, ids)
            if left:
                tx.calls.assign(left, lease_id=lease_id, run_id=run_id, now=svc.clock.now())

        await svc.store.write(unit)


def _waiting(pool: CallPool, tx: Tx) -> list[QueuedCall]:
    return tx.calls.waiting(pool, after=None, limit=REFILL)


def _given_table(call: CallRecord) -> dict[str, Any]:
    """What `GivenCall` reads."""
    return {
        "id": call.id,
        "function": call.function,
        "attempt": call.attempt + 1,
        "args": payload_table(call.arguments),
        "timeout_s": CallOptions.read(call.options).timeout_s,
        "depth": call.depth,
    }


@router.post("/leases/{lease_id}/nested")
async def nested_calls(
    lease_id: LeasePath, epoch: Epoch, body: NestedRequest, host_id: OwnHost, svc: Svc
) -> NestedAnswer:
    """Calls from within a call: with the rights of the instance's run, within its project, and no others."""
    run, entry = await svc.store.write(
        lambda tx: _own_run(tx, lease_id, epoch, host_id=host_id, now=svc.clock.now(), svc=svc)
    )
    caller = Caller(Token.of_run(run.id, run.project))
    match body.what:
        case "find":
            return await svc.store.read(lambda tx: _sibling(tx, run.project, entry, body.endpoint or "", svc))
        case "make":
            request = CallsRequest(
                project=run.project,
                endpoint=body.endpoint or "",
                version=body.version,
                calls=body.calls,
                parent=body.parent,
                wait_s=body.wait_s,
            )
            return NestedAnswer(calls=[_view(call, svc) for call in await accept(request, caller, svc)])
        case "collect":
            found = await _collected(CollectRequest(ids=body.ids, wait_s=body.wait_s), caller, svc)
            return NestedAnswer(calls=[_view(call, svc) for call in found])
        case "get":
            return NestedAnswer(call=await get_call(body.id or "", caller, svc, body.wait_s))
        case "chunks":
            page = await get_chunks(body.id or "", caller, svc, body.after, body.wait_s)
            return NestedAnswer(chunks=page.chunks, ended=page.ended, error=page.error)
        case "cancel":
            return NestedAnswer(call=await cancel_call(body.id or "", caller, svc))


def _own_run(
    tx: Tx, lease_id: LeaseId, epoch: int, *, host_id: HostId, now: float, svc: Services
) -> tuple[Run, Endpoint]:
    _, run = fence(tx, LeaseKey(lease_id, epoch, host_id), now=now, policy=svc.policy)
    instance = tx.endpoints.instance(run.id)
    endpoint = None if instance is None else tx.endpoints.get(instance.endpoint_id)
    if endpoint is None:
        raise Forbidden("only an instance of an endpoint may make calls")
    return run, endpoint


def _sibling(tx: Tx, project: str, own: Endpoint, name: str, svc: Services) -> NestedAnswer:
    """Another member of the app: of a program that runs now if this one is, of the deployed app otherwise."""
    for candidate in [f"live.{name}", name] if own.live else [name]:
        found = tx.endpoints.by_name(project, candidate)
        if found is not None and found.current:
            tables = svc.book.functions(tx, found.id, found.current)
            return NestedAnswer(
                project=project,
                endpoint=candidate,
                version=found.current if own.live else 0,
                functions={key: FunctionTable.model_validate(table) for key, table in tables.items()},
            )
    raise NotFound(
        f"project {project} has no endpoint {name!r}", hint="Deploy it, or call it once from the program."
    )
