"""Accepting calls: all of a request or none, durably, and one call for each key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from corral.core.calls.dispatch import Dispatcher
from corral.core.calls.transitions import TOPIC_CALL_READY, ready_key
from corral.core.quotas import add_payloads
from corral.core.storage.blobs import NamedBlob, check_of_project
from corral.domain.calls import CallOptions, CallRecord, CallState, Payload
from corral.domain.canonical import digest_of
from corral.domain.endpoints import Endpoint, PoolParams, VersionState
from corral.domain.errors import Conflict, FieldError, InvalidInput, NotFound
from corral.domain.ids import CallId, EndpointId, new_call_id
from corral.store.store import Store
from corral.store.transaction import Tx

# A function that calls itself without end is stopped at this depth.
DEEPEST = 32
_NO_PARAMS: Mapping[str, Payload] = {}


def new_call(
    function: str,
    args: Payload,
    options: CallOptions,
    *,
    submitted_by: str,
    version: int = 0,
    pool: str = "",
    priority: int = 0,
    key: str | None = None,
    parent_id: CallId | None = None,
) -> CallRecord:
    """A call that is not accepted yet: `accept` sets its endpoint, its depth and its times."""
    return CallRecord(
        id=new_call_id(),
        project="",
        endpoint_id=EndpointId(""),
        version=version,
        pool=pool,
        function=function,
        priority=priority,
        key=key,
        parent_id=parent_id,
        depth=0,
        submitted_by=submitted_by,
        options=options.text(),
        args_format=args.format,
        args=args.body,
        args_blob=args.blob,
        args_bytes=args.size,
        created_at=0.0,
        ready_at=0.0,
    )


def pool_of(params: Payload) -> str:
    """The pool of instances whose class has these parameters."""
    if params.body is None:
        raise InvalidInput(
            "a class's parameters are larger than 64 KiB", hint="Give what is large to a method."
        )
    return digest_of([params.format, params.body.hex()])[:16]


def check_functions(endpoint: Endpoint, known: Collection[str], calls: Sequence[CallRecord]) -> None:
    for call in calls:
        if call.function not in known:
            raise InvalidInput(
                f"{endpoint.name} has no function {call.function!r}",
                hint=f"It has: {', '.join(sorted(known))}.",
                fields=[FieldError("function", "is not one of the endpoint's")],
            )


def accept(
    tx: Tx,
    endpoint: Endpoint,
    calls: Sequence[CallRecord],
    *,
    now: float,
    params: Mapping[str, Payload] = _NO_PARAMS,
    early: bool = False,
) -> list[CallRecord]:
    """Queue calls of one request, all or none. One with the key of an earlier call is that call.

    `params` has the parameters of their pools. With `early` an instance may begin before the commit is
    durable. Nobody hears of an outcome before acceptance and outcome are both durable; if the commit fails,
    there never was a call, and its outcome changes nothing.
    """
    _check_serves(tx, endpoint, calls[0].version or endpoint.current)
    depth = _depth(tx, endpoint.project, calls[0].parent_id)
    check_of_project(tx, endpoint.project, named_blobs(calls))
    size = 0
    for pool, payload in params.items():
        made = PoolParams(endpoint.id, pool, payload.format, payload.body or b"", now)
        size += len(made.params) if tx.endpoints.put_pool(made) else 0
    accepted = []
    # In order: calls of one request are ready at the same moment, and then go by their ids.
    for call_id, new in zip(sorted(call.id for call in calls), calls, strict=True):
        ttl_s = CallOptions.read(new.options).ttl_s
        call = new._replace(
            id=call_id,
            project=endpoint.project,
            endpoint_id=endpoint.id,
            depth=depth,
            created_at=now,
            ready_at=now,
            expires_at=None if ttl_s is None else now + ttl_s,
        )
        if not tx.calls.insert(call):
            accepted.append(_earlier(tx, call))
            continue
        pin_blob(tx, call, call.arguments)
        size += len(call.args or b"")
        tx.announce(TOPIC_CALL_READY, ready_key(call), early=early)
        accepted.append(call)
    add_payloads(tx, endpoint.project, size)
    if now - endpoint.called_at > 1.0:
        tx.endpoints.touch(endpoint.id, now)
    return accepted


async def write_accepted(
    store: Store, dispatch: Dispatcher, unit: Callable[[Tx], list[CallRecord]]
) -> list[CallRecord]:
    """Commit a unit that accepts calls, and remember the calls for whoever is assigned them."""
    accepted: list[CallRecord] = []

    def remembered(tx: Tx) -> None:
        accepted[:] = unit(tx)
        if store.alone:
            # An instance may be assigned them before they can be read.
            dispatch.remember(call for call in accepted if call.state is CallState.QUEUED)

    try:
        await store.write(remembered)
    except BaseException:
        # A call that an instance has by now is looked up when the instance reports it.
        for call in accepted:
            dispatch.call_changed(call.id)
        raise
    if not store.alone:
        dispatch.remember(call for call in accepted if call.state is CallState.QUEUED)
    return accepted


def pin_blob(tx: Tx, call: CallRecord, payload: Payload) -> None:
    """A blob that a call names stays as long as the call does."""
    if payload.blob is not None:
        tx.blobs.pin(call.project, [payload.blob], holder=f"call:{call.id}", expires_at=None)


def _check_serves(tx: Tx, endpoint: Endpoint, number: int) -> None:
    state, detail = tx.endpoints.state_of(endpoint.id, number) or (None, None)
    if state is VersionState.BROKEN:
        raise Conflict(
            f"version {number} of {endpoint.name} does not start: {detail}",
            hint="Correct it and deploy it again.",
        )
    if endpoint.stopped:
        raise Conflict(
            f"{endpoint.name} is stopped", hint=f"Start it with `corral fn scale {endpoint.name}`."
        )


def _earlier(tx: Tx, call: CallRecord) -> CallRecord:
    earlier = tx.calls.by_key(call.endpoint_id, call.key or "")
    if earlier is None:
        raise Conflict(f"the key {call.key} is being used at this moment", hint="Try again.")
    # The arguments of a forgotten call are not known any more; its key is.
    if not earlier.forgotten and _identity(earlier) != _identity(call):
        raise Conflict(
            f"the key {call.key} was used before for a call with other arguments ({earlier.id})",
            hint="Make a new key for each new call.",
        )
    return earlier


def _identity(call: CallRecord) -> tuple[object, ...]:
    return call.function, call.pool, call.args, call.args_blob


def _depth(tx: Tx, project: str, parent_id: CallId | None) -> int:
    parent = None if parent_id is None else tx.calls.get(parent_id)
    if parent_id is None:
        return 0
    if parent is None or parent.project != project:
        raise NotFound(f"project {project} has no call {parent_id}, within which these are made")
    if parent.depth + 1 >= DEEPEST:
        raise Conflict(
            f"calls within calls are {DEEPEST} deep",
            hint="A function that calls itself remotely needs an end; call it plainly inside.",
        )
    return parent.depth + 1


def named_blobs(calls: Sequence[CallRecord]) -> list[NamedBlob]:
    """The arguments that are blobs."""
    return [NamedBlob(call.args_blob, call.args_bytes) for call in calls if call.args_blob is not None]
