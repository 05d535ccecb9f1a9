"""Routes: making calls, following them, and the exchange with instances."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from corral.core.calls import accept as core
from corral.core.calls.exchange import InstanceReport
from corral.core.calls.retry import retry
from corral.core.calls.transitions import cancel
from corral.core.calls.why_waiting import why_waiting
from corral.core.endpoints.deploy import siblings
from corral.core.leases.fence import fence
from corral.core.queue.nowhere import why_nowhere
from corral.core.storage.blobs import check_of_lease
from corral.core.wakeups import wait_for
from corral.domain.calls import CALL_FINAL, CallFilter, CallOptions, CallRecord, CallState, Chunk, Payload
from corral.domain.endpoints import Endpoint
from corral.domain.errors import Forbidden, NotFound
from corral.domain.ids import CallId, HostId, LeaseId, is_id
from corral.domain.leases import LeaseKey
from corral.domain.runs.runs import Run
from corral.domain.tokens import Token
from corral.server.auth import Caller, OwnLease, User
from corral.server.bodies.large import LargeBodyRoute
from corral.server.pages import (
    PAGE_BYTES,
    Limit,
    by_time,
    filled,
    in_portions,
    json_answer,
    parse_time_cursor,
    within_bytes,
)
from corral.server.routes.endpoints import find_endpoint
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire import calls as wire
from corral.wire.endpoints import FunctionTable
from corral.wire.payloads import PayloadBody, payload_table

router = APIRouter(prefix="/v1", tags=["functions"], route_class=LargeBodyRoute)

WaitSeconds = Annotated[float, Query(ge=0, le=60)]
ChunkNumber = Annotated[int, Query(ge=0, lt=2**62)]
Gone = Callable[[], Awaitable[bool]]
_dumps = json.JSONEncoder(separators=(",", ":")).encode
# How many are read at a time: arguments, result and error of a call may have 160 KiB, a chunk 64.
_PORTION = 64
# Results of so many bytes are rendered on the event loop; more would hold other calls up.
_RENDERED_AT_ONCE = 256 << 10
# Clients of before take one page of a thousand calls for all: their errors fit, as long as they may be.
_LIST_BYTES = 8 * PAGE_BYTES
# Fields that a `CallView` has from the record as they are.
_SAME_IN_VIEW = (
    *("id", "project", "function", "state", "priority", "attempt", "lost", "key", "version", "created_at"),
    *("started_at", "ended_at", "ran_s", "chunks", "args_bytes", "result_bytes", "submitted_by", "forgotten"),
)


@router.post("/calls", status_code=202, response_model=wire.CallsAnswer)
async def make_calls(body: wire.CallsRequest, caller: User, svc: Svc) -> Response:
    """Accept calls, all or none, durably. With `wait_s`, the answer comes when all have ended."""
    text = await as_json(await accept(body, caller, svc), svc)
    return Response(text, status_code=202, media_type="application/json")


async def as_json(calls: Sequence[CallRecord], svc: Services) -> str:
    """A `CallsAnswer`, without a model of each call: there may be thousands a second."""

    def rendered() -> str:
        return f'{{"calls":[{",".join(_dumps(_table(call, svc)) for call in calls)}]}}'

    return await svc.in_thread(rendered) if sum(map(_carried, calls)) > _RENDERED_AT_ONCE else rendered()


def _carried(call: CallRecord) -> int:
    return len(call.result or b"") + len(call.error or "")


async def accept(
    body: wire.CallsRequest, caller: Caller, svc: Services, maker: LeaseKey | None = None
) -> list[CallRecord]:
    """`maker` is the lease of the instance that makes them, if one does."""
    caller.check_project(body.project)
    calls, params = _new_calls(body, caller)

    def unit(tx: Tx) -> list[CallRecord]:
        endpoint = find_endpoint(tx, body.project, body.endpoint, caller)
        if maker is not None:
            _check_maker(tx, maker, calls, svc)
        known = svc.calls.endpoints.functions(tx, endpoint.id, body.version or endpoint.current)
        core.check_functions(endpoint, known, calls)
        return core.accept(tx, endpoint, calls, params=params, now=svc.clock.now(), early=svc.store.alone)

    # A caller that waits for the outcome need not hear of the acceptance before.
    accepted = await core.write_accepted(svc.store, svc.dispatch, unit)
    if not body.wait_s:
        return accepted
    return await svc.results.wait_all(accepted, body.wait_s, fresh=True)


def _check_maker(tx: Tx, maker: LeaseKey, calls: Sequence[CallRecord], svc: Services) -> None:
    """An instance makes calls with bytes that it has, from within calls of its own endpoint."""
    lease, _ = fence(tx, maker, now=svc.clock.now(), policy=svc.policy)
    given = [call.args_blob for call in svc.dispatch.recent_of(maker.id)]
    check_of_lease(tx, lease, core.named_blobs(calls), arguments=given)
    parent = None if calls[0].parent_id is None else tx.calls.get(calls[0].parent_id)
    instance = tx.endpoints.instance(lease.run_id)
    if parent is not None and (instance is None or parent.endpoint_id != instance.endpoint_id):
        raise NotFound(f"the instance has no call {parent.id}, within which these are made")


def _new_calls(body: wire.CallsRequest, caller: Caller) -> tuple[list[CallRecord], dict[str, Payload]]:
    """The calls, and the parameters of the pools they are for."""
    calls: list[CallRecord] = []
    pools: dict[str, Payload] = {}
    for one in body.calls:
        params = None if one.params is None else one.params.payload("params")
        pool = "" if params is None else core.pool_of(params)
        if params is not None:
            pools[pool] = params
        new = core.new_call(
            one.function,
            one.args.payload("args"),
            one.options.options(),
            submitted_by=caller.actor,
            version=body.version,
            pool=pool,
            priority=one.priority,
            key=one.key,
            parent_id=CallId(body.parent) if body.parent else None,
        )
        calls.append(new)
    return calls, pools


@router.post("/calls/collect", response_model=wire.CallsAnswer)
async def collect(body: wire.CollectRequest, caller: User, svc: Svc) -> Response:
    """The calls that have ended, with their results; with `wait_s` as soon as there is one."""
    return json_answer(await as_json(await ended_calls(body, caller, svc), svc))


async def ended_calls(body: wire.CollectRequest, caller: Caller, svc: Services) -> list[CallRecord]:
    """As many as one answer takes; whoever waits for more asks again."""
    found = await svc.results.wait_any([CallId(one) for one in body.ids], body.wait_s, fresh=False)
    return list(within_bytes((call for call in found if caller.sees(call.project)), _carried))


@router.get("/calls", response_model=wire.CallPage)
async def list_calls(
    caller: User,
    svc: Svc,
    project: str | None = None,
    endpoint: str | None = None,
    state: CallState | Literal["dead"] | None = None,
    function: str | None = None,
    cursor: str | None = None,
    limit: Limit = 50,
) -> Response:
    """Newest first, without arguments and results. `dead` are calls that failed or expired."""
    within = caller.narrowed(project) or None
    after = parse_time_cursor(cursor, "c", CallId)
    dead = state == "dead"

    def unit(tx: Tx) -> bytes:
        found = None if endpoint is None else tx.endpoints.by_name(within or "default", endpoint)
        if endpoint is not None and found is None:
            raise NotFound(f"there is no endpoint {endpoint!r}", hint="List them with `corral fn ls`.")
        endpoint_id = found.id if found else None
        where = CallFilter(within, endpoint_id, None if dead else state, function, dead or None)

        def read(last: tuple[float, CallId] | None, count: int) -> list[CallRecord]:
            return tx.calls.page(where, after=last, limit=count)

        rows = in_portions(
            read, lambda one: (one.created_at, one.id), after=after, limit=limit, portion=_PORTION
        )
        return filled(rows, limit, lambda one: _view(one, svc), most_bytes=_LIST_BYTES).with_next(by_time)

    return json_answer(await svc.store.read(unit))


@router.get("/calls/{call_id}")
async def get_call(call_id: str, caller: User, svc: Svc, wait_s: WaitSeconds = 0) -> wire.CallView:
    """A call; with `wait_s` when it has ended or the time is over."""
    call = await svc.store.read(lambda tx: _find_call(tx, call_id, caller))
    if wait_s and call.state not in CALL_FINAL:
        (call,) = await svc.results.wait_all([call], wait_s, fresh=False)
    if call.state in CALL_FINAL:
        return _view(call, svc)

    def unit(tx: Tx) -> wire.CallView:
        # It may have begun meanwhile.
        now = tx.calls.get(call.id) or call
        moment = svc.clock.now()
        nowhere = partial(why_nowhere, tx, now=moment, policy=svc.policy, shapes=svc.board.shapes)
        why = why_waiting(tx, now, moment, svc.calls.starts, nowhere)
        return _view(now, svc).model_copy(update={"waiting": why})

    return await svc.store.read(unit)


@router.get("/calls/{call_id}/chunks", response_model=wire.ChunkPage)
async def get_chunks(
    call_id: str, caller: User, svc: Svc, after: ChunkNumber = 0, wait_s: WaitSeconds = 0, limit: Limit = 100
) -> Response:
    """What a generator gave after number `after`; read on from the last number after any break."""
    return json_answer((await read_chunks(call_id, caller, svc, after, wait_s, limit)).model_dump_json())


async def read_chunks(
    call_id: str, caller: Caller, svc: Services, after: int, wait_s: float, limit: int = 100
) -> wire.ChunkPage:
    def unit(tx: Tx) -> wire.ChunkPage:
        call = _find_call(tx, call_id, caller)

        def read(last: int | None, count: int) -> list[Chunk]:
            return tx.calls.chunks(call.id, after=last or 0, limit=count)

        rows = in_portions(read, lambda one: one.n, after=after, limit=limit, portion=_PORTION)
        found = list(within_bytes(rows, lambda one: len(one.body or b"")))
        last = found[-1].n if found else after
        return wire.ChunkPage(
            chunks=[
                wire.ChunkView(n=c.n, payload=PayloadBody(**payload_table(Payload(c.format, c.body, c.blob))))
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
            settled = page.chunks or page.ended or left <= 0 or svc.hub.closing
            if settled or not await wait_for(news, left):
                return page


def _chunk_error(call: CallRecord, last: int) -> dict[str, Any] | None:
    """Why nothing comes after `last`, if that was not all."""
    if call.forgotten and last < call.chunks:
        return {"type": "Expired", "message": f"what call {call.id} gave is not kept any more", "bases": []}
    return _error(call) if call.state in CALL_FINAL else None


@router.post("/calls/{call_id}/cancel")
async def cancel_call(call_id: str, caller: User, svc: Svc) -> wire.CallView:
    """Whoever waits is told at once; an instance that runs it hears of it in its next exchange."""
    now = svc.clock.now()
    call = await svc.store.write(lambda tx: cancel(tx, _find_call(tx, call_id, caller).id, now=now))
    return _view(call, svc)


@router.post("/calls/{call_id}/retry")
async def retry_call(call_id: str, caller: User, svc: Svc) -> wire.CallView:
    """Queue a call that ended without a result once more, under its own id."""
    now = svc.clock.now()
    call = await svc.store.write(lambda tx: retry(tx, _find_call(tx, call_id, caller).id, now=now))
    svc.dispatch.remember([call])
    return _view(call, svc)


def _find_call(tx: Tx, text: str, caller: Caller) -> CallRecord:
    call = tx.calls.get(CallId(text)) if is_id(text, "c") else None
    if call is None or not caller.sees(call.project):
        raise NotFound(f"there is no call {text[:80]!r}", hint="List them with `corral calls ls`.")
    return call


def _view(call: CallRecord, svc: Services) -> wire.CallView:
    return wire.CallView.model_validate(_table(call, svc))


def _table(call: CallRecord, svc: Services) -> dict[str, Any]:
    """The fields of a `CallView`."""
    result = call.outcome
    empty = result is None or (result.body is None and result.blob is None)
    return {
        **{name: getattr(call, name) for name in _SAME_IN_VIEW},
        "endpoint": svc.calls.endpoints.name(call.endpoint_id),
        "parent": call.parent_id,
        "run": call.run_id,
        "result": None if result is None or empty else payload_table(result),
        "error": _error(call),
    }


def _error(call: CallRecord) -> dict[str, Any] | None:
    return None if call.error is None else json.loads(call.error)


@router.post("/leases/{lease_id}/calls", response_model=wire.LeaseCallsAnswer)
async def lease_calls(key: OwnLease, body: wire.LeaseCallsRequest, svc: Svc, request: Request) -> Response:
    """Outcomes in, calls out: at once, or within `wait_s`."""
    gone = request.is_disconnected
    text = await exchange_as_json(key.id, key.epoch, body, key.host_id, svc, gone)
    return Response(text, media_type="application/json")


async def exchange_as_json(
    lease_id: LeaseId, epoch: int, body: wire.LeaseCallsRequest, host_id: HostId, svc: Services, gone: Gone
) -> str:
    """A `LeaseCallsAnswer`."""
    report = InstanceReport(
        lease_id,
        epoch,
        host_id,
        outcomes=[one.outcome() for one in body.outcomes],
        chunks=[one.batch() for one in body.chunks],
        holding=body.holding,
        want=body.want,
        wait_s=body.wait_s,
    )
    orders = await svc.exchange.exchange(report, gone)
    calls = [_assigned_table(call) for call in orders.calls]
    return _dumps({"calls": calls, "cancelled": orders.cancelled, "stop": orders.stop})


def _assigned_table(call: CallRecord) -> dict[str, Any]:
    """The fields of an `AssignedCall`."""
    options = CallOptions.read(call.options)
    return {
        "id": call.id,
        "function": call.function,
        "attempt": call.attempt + 1,
        "args": payload_table(call.arguments),
        "timeout_s": options.timeout_s,
        "depth": call.depth,
        "reads": options.reads,
    }


@router.post("/leases/{lease_id}/nested")
async def nested_calls(key: OwnLease, body: wire.NestedRequest, svc: Svc) -> wire.NestedAnswer:
    """Calls from within a call: with the rights of the instance's run, within its project, and no others."""
    run, own = await svc.store.write(lambda tx: _own_run(tx, key, svc))
    caller = Caller(Token.of_run(run.id, run.project))
    match body.what:
        case "find":
            return await svc.store.read(lambda tx: _sibling(tx, own, body.endpoint or "", svc))
        case "make":
            request = wire.CallsRequest(
                project=run.project,
                endpoint=body.endpoint or "",
                version=body.version,
                calls=body.calls,
                parent=body.parent,
                wait_s=body.wait_s,
            )
            return wire.NestedAnswer(
                calls=[_view(call, svc) for call in await accept(request, caller, svc, key)]
            )
        case "collect":
            found = await ended_calls(wire.CollectRequest(ids=body.ids, wait_s=body.wait_s), caller, svc)
            return wire.NestedAnswer(calls=[_view(call, svc) for call in found])
        case "get":
            return wire.NestedAnswer(call=await get_call(body.id or "", caller, svc, body.wait_s))
        case "chunks":
            page = await read_chunks(body.id or "", caller, svc, body.after, body.wait_s)
            return wire.NestedAnswer(chunks=page.chunks, ended=page.ended, error=page.error)
        case "cancel":
            return wire.NestedAnswer(call=await cancel_call(body.id or "", caller, svc))


def _own_run(tx: Tx, key: LeaseKey, svc: Services) -> tuple[Run, Endpoint]:
    _, run = fence(tx, key, now=svc.clock.now(), policy=svc.policy)
    instance = tx.endpoints.instance(run.id)
    endpoint = None if instance is None else tx.endpoints.get(instance.endpoint_id)
    if endpoint is None:
        raise Forbidden("only an instance of an endpoint may make calls")
    return run, endpoint


def _sibling(tx: Tx, own: Endpoint, name: str, svc: Services) -> wire.NestedAnswer:
    """Another member of the app: of the running program if this one is live, of the draft if it is one, else
    of the deployed app."""
    for candidate in siblings(tx, own, name):
        found = tx.endpoints.by_name(own.project, candidate)
        if found is not None and found.current:
            tables = svc.calls.endpoints.functions(tx, found.id, found.current)
            return wire.NestedAnswer(
                project=own.project,
                endpoint=candidate,
                version=found.current if own.live else 0,
                functions={key: FunctionTable.model_validate(table) for key, table in tables.items()},
            )
    raise NotFound(
        f"project {own.project} has no endpoint {name!r}",
        hint="Deploy it, or call it once from the program.",
    )
