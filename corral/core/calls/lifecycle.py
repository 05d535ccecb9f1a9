"""Calls: accepting them, giving them to instances, and keeping exactly one outcome of each."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.webhooks.call_notices import tell
from corral.domain.calls import (
    CALL_FINAL,
    CallEvent,
    CallPool,
    CallRecord,
    CallState,
    Chunk,
    Payload,
    QueuedCall,
)
from corral.domain.canonical import canonical
from corral.domain.endpoints import Endpoint, PoolParams, ServingVersion, VersionState
from corral.domain.errors import BlobMissing, Conflict, FieldError, InvalidInput, LeaseLost, NotFound
from corral.domain.ids import CallId, Digest, EndpointId, HostId, LeaseId, RunId, new_call_id
from corral.domain.leases import LeaseKey, LeaseState
from corral.store.transaction import Tx

TOPIC_CALL = "call"
TOPIC_CALL_READY = "call_ready"
# A call that killed this many instances is not given to another.
MOST_LOST = 3
# A function that calls itself without end is stopped here.
DEEPEST = 32
# How long there is an answer about a call that ended, also when its result is not kept any more.
RECORD_S = 30 * 86400.0
_LOST_TYPE = "InstanceLost"


@dataclass(frozen=True)
class CallOptions:
    """`retry_on` names exception types, `Module.Name` or `Name`; none means every one."""

    timeout_s: float | None = None
    ttl_s: float | None = None
    keep_s: float = 7 * 86400.0
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    delay_s: float = 1.0
    backoff: float = 2.0
    max_delay_s: float = 60.0

    @staticmethod
    @lru_cache(maxsize=1024)
    def read(text: str) -> CallOptions:
        table = json.loads(text)
        return CallOptions(**{**table, "retry_on": tuple(table.get("retry_on", ()))})

    @lru_cache(maxsize=1024)  # noqa: B019 - options are few, and the calls that share them are many
    def text(self) -> str:
        return canonical(vars(self))

    def again(self, error: Mapping[str, Any], attempt: int) -> bool:
        if attempt > self.retries:
            return False
        names = {str(name) for name in error.get("bases", ())}
        return not self.retry_on or bool(names & set(self.retry_on))

    def pause_s(self, call_id: CallId, attempt: int) -> float:
        """Between half and the whole of the delay, spread by the call's own id: no dice in a unit that may
        run twice."""
        whole = min(self.max_delay_s, self.delay_s * self.backoff ** (attempt - 1))
        spread = (hash_of(f"{call_id}:{attempt}") % 1000) / 1000
        return whole * (0.5 + 0.5 * spread)


def hash_of(text: str) -> int:
    """The same in every process, unlike `hash`."""
    number = 2166136261
    for byte in text.encode():
        number = (number ^ byte) * 16777619 % (1 << 32)
    return number


class NewCall(NamedTuple):
    function: str
    args: Payload
    key: str | None
    priority: int
    options: CallOptions
    # Parameters of the class that the call is for; their pool is named by their digest.
    pool: str
    params: Payload | None


class CallOrigin(NamedTuple):
    """Who calls; `parent` is the call from within which this one is made."""

    principal: str
    parent: CallId | None = None


def accept(
    tx: Tx,
    endpoint: Endpoint,
    version: int,
    calls: Sequence[NewCall],
    *,
    caller: CallOrigin,
    now: float,
    early: bool = False,
) -> list[CallRecord]:
    """Queue them, all or none. One with the key of an earlier call is that call.

    With `early` an instance may begin with them while they are written down. Nobody hears of an outcome
    before both are; should they not be, it was no call, and what is told of it changes nothing.
    """
    number = version or endpoint.current
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
    depth = _depth(tx, caller)
    _check_blobs(tx, endpoint.project, calls)
    found = []
    for new in calls:
        if new.pool and new.params is not None and new.params.body is not None:
            tx.endpoints.put_pool(PoolParams(endpoint.id, new.pool, new.params.format, new.params.body, now))
        call = _made(endpoint, version, new, caller=caller, depth=depth, now=now)
        if not tx.calls.insert(call):
            found.append(_earlier(tx, call))
            continue
        _hold_blob(tx, call, call.args_blob)
        tx.announce(TOPIC_CALL_READY, ready_key(call), early=early)
        found.append(call)
    if now - endpoint.called_at > 1.0:
        tx.endpoints.touch(endpoint.id, now)
    return found


def _made(
    endpoint: Endpoint, version: int, new: NewCall, *, caller: CallOrigin, depth: int, now: float
) -> CallRecord:
    options = new.options
    return CallRecord(
        id=new_call_id(),
        project=endpoint.project,
        endpoint_id=endpoint.id,
        version=version,
        pool=new.pool,
        function=new.function,
        priority=new.priority,
        key=new.key,
        parent_id=caller.parent,
        depth=depth,
        submitted_by=caller.principal,
        options=options.text(),
        args_format=new.args.format,
        args=new.args.body,
        args_blob=new.args.blob,
        args_bytes=new.args.size,
        created_at=now,
        ready_at=now,
        expires_at=None if options.ttl_s is None else now + options.ttl_s,
    )


def _earlier(tx: Tx, call: CallRecord) -> CallRecord:
    earlier = tx.calls.by_key(call.endpoint_id, call.key or "")
    if earlier is None:
        raise Conflict(f"the key {call.key} is being used at this moment", hint="Try again.")
    if earlier.forgotten:
        # With what it was called is not known any more; the key is.
        return earlier
    same = (earlier.function, earlier.pool, earlier.args, earlier.args_blob) == (
        call.function,
        call.pool,
        call.args,
        call.args_blob,
    )
    if not same:
        raise Conflict(
            f"the key {call.key} was used before for a call with other arguments ({earlier.id})",
            hint="Make a new key for each new call.",
        )
    return earlier


def _depth(tx: Tx, caller: CallOrigin) -> int:
    if caller.parent is None:
        return 0
    parent = tx.calls.get(caller.parent)
    if parent is None:
        raise NotFound(f"there is no call {caller.parent}")
    if parent.depth + 1 >= DEEPEST:
        raise Conflict(
            f"calls within calls are {DEEPEST} deep",
            hint="A function that calls itself remotely needs an end; call it plainly inside.",
        )
    return parent.depth + 1


def _check_blobs(tx: Tx, project: str, calls: Sequence[NewCall]) -> None:
    wanted = {new.args.blob: new.args.size for new in calls if new.args.blob is not None}
    if not wanted:
        return
    have = tx.blobs.present(project, list(wanted))
    if missing := [blob for blob, size in wanted.items() if have.get(blob) != size]:
        raise BlobMissing(
            f"the arguments {', '.join(missing)} are not on the server", hint="Upload them first."
        )


def _hold_blob(tx: Tx, call: CallRecord, blob: Digest | None) -> None:
    """What a call names stays as long as the call does."""
    if blob is not None:
        tx.blobs.pin(call.project, [blob], holder=f"call:{call.id}", expires_at=None)


def forget(tx: Tx, call_id: CallId, *, now: float) -> None:
    """Its time is over: first its arguments and result go, and later the record that there was one."""
    call = tx.calls.lock(call_id)
    if call is None or call.forget_at is None or call.forget_at > now:
        return
    gone_at = (call.ended_at or now) + RECORD_S
    if call.forgotten or gone_at <= now:
        tx.blobs.unpin(f"call:{call_id}")
        tx.calls.delete(call_id)
        return
    tx.blobs.unpin(f"call:{call_id}")
    tx.calls.drop_payloads(call_id, forget_at=gone_at)


def place_of(call: CallRecord) -> tuple[CallPool, QueuedCall]:
    """Where it stands in line."""
    return CallPool(call.endpoint_id, call.version, call.pool), QueuedCall(
        -call.priority, call.ready_at, call.id
    )


def ready_key(call: CallRecord) -> str:
    return f"{call.endpoint_id}|{call.version}|{call.priority}|{call.ready_at!r}|{call.id}|{call.pool}"


def parse_ready_call(key: str) -> tuple[CallPool, QueuedCall]:
    endpoint_id, version, priority, ready_at, call_id, pool = key.split("|", 5)
    waiting = QueuedCall(-int(priority), float(ready_at), CallId(call_id))
    return CallPool(EndpointId(endpoint_id), int(version), pool), waiting


class CallOutcome(NamedTuple):
    """What an instance says of one call. `error` is set unless it succeeded."""

    call_id: CallId
    attempt: int
    result: Payload | None
    error: Mapping[str, Any] | None
    ran_s: float
    # Given back unbegun, at no cost: the instance stops.
    gave_back: bool = False
    cancelled: bool = False
    # Of a generator: how many it gave in this try.
    chunks: int | None = None


def settle(
    tx: Tx,
    lease_id: LeaseId,
    run_id: RunId,
    endpoint_id: EndpointId,
    told: Sequence[CallOutcome],
    *,
    now: float,
) -> list[CallRecord]:
    """Keep the outcomes of calls that this lease had; gives what is queued or ended by them.

    What is stale or was told before changes nothing.
    """
    changed = []
    for one in told:
        call = tx.calls.lock(one.call_id)
        if call is None or call.endpoint_id != endpoint_id or call.state in CALL_FINAL:
            continue
        if not _is_its_own(call, lease_id, one.attempt):
            continue
        if call.state is CallState.QUEUED:
            if one.gave_back:
                # It was not written down that it was given, or it is queued again already.
                changed.append(call)
                continue
            if one.cancelled:
                continue
            call = call._replace(lease_id=lease_id, run_id=run_id, started_at=now - one.ran_s)
        changed.append(_settled(tx, call, one, now=now))
    tell(tx, changed, now=now)
    return changed


def _is_its_own(call: CallRecord, lease_id: LeaseId, attempt: int) -> bool:
    if call.state is CallState.ASSIGNED:
        return (call.lease_id, call.attempt) == (lease_id, attempt)
    # Thought lost and queued again, or given out by a server that died before it was written down.
    return attempt in (call.attempt, call.attempt + 1)


def _settled(tx: Tx, call: CallRecord, told: CallOutcome, *, now: float) -> CallRecord:
    if told.gave_back:
        # As if it had not been given out: its place in the queue is the old one, and no try is counted.
        return requeue(tx, call._replace(attempt=told.attempt - 1), at=call.ready_at)
    call = call._replace(attempt=told.attempt, ran_s=call.ran_s + told.ran_s)
    if told.error is None and not told.cancelled:
        if told.chunks is not None and told.chunks > call.chunks:
            # They come in another request, which was overtaken: it is told again after that.
            raise InvalidInput(f"chunk {call.chunks + 1} of call {call.id} is missing")
        if told.chunks is not None and told.chunks < call.chunks:
            return _gave_others(tx, call, told.chunks + 1, now=now)
        result = told.result or Payload("none")
        _hold_blob(tx, call, result.blob)
        return end(
            tx,
            call._replace(
                result_format=result.format,
                result=result.body,
                result_blob=result.blob,
                result_bytes=result.size,
                error=None,
            ),
            CallEvent.SUCCEED,
            now=now,
        )
    if told.cancelled:
        return end(tx, call, CallEvent.CANCEL, now=now)
    error = dict(told.error or {})
    options = CallOptions.read(call.options)
    # What was lost with an instance is no try of the function's.
    if options.again(error, told.attempt - call.lost):
        pause_s = options.pause_s(call.id, told.attempt)
        return requeue(tx, call._replace(error=canonical(error)), at=now + pause_s)
    return end(tx, call._replace(error=canonical(error)), CallEvent.FAIL, now=now)


def requeue(tx: Tx, call: CallRecord, *, at: float) -> CallRecord:
    if call.state is not CallState.QUEUED:
        call = call.stepped(CallEvent.REQUEUE)
    call = call._replace(lease_id=None, ready_at=at)
    tx.calls.save(call)
    tx.announce(TOPIC_CALL_READY, ready_key(call))
    return call


def end(tx: Tx, call: CallRecord, event: CallEvent, *, now: float) -> CallRecord:
    keep_s = CallOptions.read(call.options).keep_s
    forget_at = None if math.isinf(keep_s) else now + keep_s
    call = call.stepped(event)._replace(ended_at=now, forget_at=forget_at)
    tx.calls.save(call)
    tx.announce(TOPIC_CALL, call.id)
    return call


def _end_and_tell(tx: Tx, call: CallRecord, event: CallEvent, *, now: float) -> CallRecord:
    call = end(tx, call, event, now=now)
    tell(tx, [call], now=now)
    return call


def lose(tx: Tx, call_id: CallId, *, now: float) -> CallRecord | None:
    """The instance that had it is gone: another gets it, unless it has cost too many."""
    call = tx.calls.lock(call_id)
    if call is None or call.state is not CallState.ASSIGNED:
        return None
    call = call._replace(lost=call.lost + 1)
    if call.lost < MOST_LOST:
        return requeue(tx, call, at=now)
    return _failed_as_lost(tx, call, f"it lost {call.lost} instances", now=now)


def _failed_as_lost(tx: Tx, call: CallRecord, why: str, *, now: float) -> CallRecord:
    error = {"type": _LOST_TYPE, "message": why, "bases": [_LOST_TYPE]}
    return _end_and_tell(tx, call._replace(error=canonical(error)), CallEvent.FAIL, now=now)


def _gave_others(tx: Tx, call: CallRecord, n: int, *, now: float) -> CallRecord:
    why = (
        f"it had given {call.chunks} chunks when it was interrupted, and number {n} was another when it was "
        "run again: a stream is taken up only where a generator gives the same twice"
    )
    return _failed_as_lost(tx, call, why, now=now)


def cancel(tx: Tx, call_id: CallId, *, now: float) -> CallRecord:
    """At once for everybody who waits; an instance that has it is told at its next word."""
    call = _locked(tx, call_id)
    if call.state in CALL_FINAL:
        raise Conflict(f"call {call_id} is {call.state} already", hint="Nothing was changed.")
    return _end_and_tell(tx, call, CallEvent.CANCEL, now=now)


def retry(tx: Tx, call_id: CallId, *, now: float) -> CallRecord:
    """Queue one that ended without a result once more, under its own id."""
    call = _locked(tx, call_id)
    if call.state not in CALL_FINAL or call.state is CallState.SUCCEEDED:
        raise Conflict(
            f"call {call_id} is {call.state}; only one that ended without a result can be tried again",
            hint="Make a new call for another result.",
        )
    if call.forgotten:
        raise Conflict(
            f"the arguments of call {call_id} are not kept any more", hint="Make a new call with them."
        )
    options = CallOptions.read(call.options)
    tx.calls.delete_chunks(call_id)
    call = call.stepped(CallEvent.RETRY)._replace(
        # Beyond any that an instance may still have: what it says of the old one must not fit the new one.
        attempt=call.attempt + 2,
        lost=0,
        lease_id=None,
        ended_at=None,
        forget_at=None,
        ready_at=now,
        error=None,
        chunks=0,
        expires_at=None if options.ttl_s is None else now + options.ttl_s,
    )
    tx.calls.save(call)
    tx.announce(TOPIC_CALL_READY, ready_key(call))
    return call


def cannot_run(tx: Tx, call: CallRecord, why: str, *, now: float) -> CallRecord:
    """No instance can be started that would take it."""
    error = {"type": "CannotStart", "message": why, "bases": ["CannotStart"]}
    return _end_and_tell(tx, call._replace(error=canonical(error)), CallEvent.FAIL, now=now)


def expire(tx: Tx, call_id: CallId, *, now: float) -> None:
    call = tx.calls.lock(call_id)
    if call is None or call.state is not CallState.QUEUED or call.expires_at is None or call.expires_at > now:
        return
    waited = call.expires_at - call.created_at
    error = {"type": "Expired", "message": f"it waited {waited:g} s, its whole time to live", "bases": []}
    _end_and_tell(tx, call._replace(error=canonical(error)), CallEvent.EXPIRE, now=now)


def take_back(
    tx: Tx, lease_id: LeaseId, held: Collection[str], *, before: float, now: float
) -> list[CallRecord]:
    """What the instance was given and does not know of: the answer that gave it was lost."""
    return [
        requeue(tx, call, at=now)
        for call in tx.calls.of_lease(lease_id, before=before)
        if call.id not in held and not call.chunks
    ]


def add_chunks(
    tx: Tx,
    call_id: CallId,
    attempt: int,
    lease_id: LeaseId,
    first: int,
    given: Sequence[Payload],
    *,
    now: float,
) -> CallRecord | None:
    """Append what a generator gave; `first` is the number of the first of them. Replays are dropped.

    A generator that was interrupted gives all anew. What does not equal what was given before ends the call:
    whoever reads it must not get one half of each.
    """
    call = tx.calls.lock(call_id)
    if call is None or call.state in CALL_FINAL or not _is_its_own(call, lease_id, attempt):
        return None
    if first > call.chunks + 1:
        raise InvalidInput(f"chunk {call.chunks + 1} of call {call_id} is missing")
    again = tx.calls.chunks(call_id, after=first - 1, limit=len(given)) if first <= call.chunks else []
    earlier = {chunk.n: chunk for chunk in again}
    for n, part in enumerate(given, start=first):
        if (was := earlier.get(n)) is not None:
            if (was.format, was.body, was.blob) != (part.format, part.body, part.blob):
                return _gave_others(tx, call, n, now=now)
        elif n > call.chunks:
            tx.calls.insert_chunk(Chunk(call_id, n, part.format, part.body, part.blob))
            _hold_blob(tx, call, part.blob)
            call = call._replace(chunks=n)
    tx.calls.save(call)
    tx.announce(TOPIC_CALL, call_id)
    return call


def _locked(tx: Tx, call_id: CallId) -> CallRecord:
    call = tx.calls.lock(call_id)
    if call is None:
        raise NotFound(f"there is no call {call_id}", hint="List them with `corral calls ls`.")
    return call


def check_lease(
    tx: Tx, lease_id: LeaseId, epoch: int, *, host_id: HostId, now: float, policy: ServerPolicy
) -> ServingVersion:
    """Of what the lease is an instance. LeaseLost if it may not speak."""
    serving = tx.endpoints.serving(lease_id)
    live = (host_id, epoch, LeaseState.LIVE)
    if serving is None or (serving.host_id, serving.epoch, serving.lease_state) != live:
        # It may be taken up again, or there is more to be said about why not.
        _, run = fence(tx, LeaseKey(lease_id, epoch, host_id), now=now, policy=policy)
        serving = tx.endpoints.serving(lease_id)
        if serving is None:
            raise LeaseLost(f"run {run.id} serves no endpoint, or its endpoint is gone")
    if serving.ready_at is None and (instance := tx.endpoints.instance(serving.run_id)) is not None:
        tx.endpoints.save_instance(instance._replace(ready_at=now))
    return serving


def unknown_function(name: str, known: Sequence[str], endpoint: str) -> InvalidInput:
    return InvalidInput(
        f"{endpoint} has no function {name!r}",
        hint=f"It has: {', '.join(sorted(known))}.",
        fields=[FieldError("function", "is not one of the endpoint's")],
    )
