"""What instances report of their calls: exactly one outcome of each call is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from corral.core.calls.accept import pin_blob
from corral.core.calls.transitions import TOPIC_CALL, end, fail, requeue
from corral.core.webhooks.notices import tell_of_calls
from corral.domain.calls import (
    CALL_FINAL,
    CallEvent,
    CallOptions,
    CallOutcome,
    CallRecord,
    CallState,
    Chunk,
    ChunkBatch,
    Payload,
)
from corral.domain.canonical import canonical
from corral.domain.errors import InvalidInput
from corral.domain.ids import CallId, EndpointId, LeaseId, RunId
from corral.store.transaction import Tx

# A call that killed this many instances is not given to another.
MOST_LOST = 3
_LOST_TYPE = "InstanceLost"


def settle(
    tx: Tx,
    lease_id: LeaseId,
    run_id: RunId,
    endpoint_id: EndpointId,
    outcomes: Sequence[CallOutcome],
    *,
    now: float,
) -> list[CallRecord]:
    """Keep the outcomes of calls that this lease had; return those that ended or are queued again.

    A stale or repeated outcome changes nothing.
    """
    changed = []
    for outcome in outcomes:
        call = tx.calls.lock(outcome.call_id)
        if call is None or call.endpoint_id != endpoint_id or call.state in CALL_FINAL:
            continue
        if not _is_of_lease(call, lease_id, outcome.attempt):
            continue
        if call.state is CallState.QUEUED:
            if outcome.gave_back:
                # Its assignment was not written down, or it is queued again already.
                changed.append(call)
                continue
            if outcome.cancelled:
                continue
            call = call._replace(lease_id=lease_id, run_id=run_id, started_at=now - outcome.ran_s)
        changed.append(_settled(tx, call, outcome, now=now))
    tell_of_calls(tx, changed, now=now)
    return changed


def _is_of_lease(call: CallRecord, lease_id: LeaseId, attempt: int) -> bool:
    if call.state is CallState.ASSIGNED:
        return (call.lease_id, call.attempt) == (lease_id, attempt)
    # It was thought lost and queued again, or a server died before it wrote down the assignment.
    return attempt in (call.attempt, call.attempt + 1)


def _settled(tx: Tx, call: CallRecord, outcome: CallOutcome, *, now: float) -> CallRecord:
    if outcome.gave_back:
        # It keeps its old place in the queue, and the attempt does not count.
        return requeue(tx, call._replace(attempt=outcome.attempt - 1), at=call.ready_at)
    call = call._replace(attempt=outcome.attempt, ran_s=call.ran_s + outcome.ran_s)
    if outcome.cancelled:
        return end(tx, call, CallEvent.CANCEL, now=now)
    if outcome.error is None:
        return _succeeded(tx, call, outcome, now=now)
    options = CallOptions.read(call.options)
    call = call._replace(error=canonical(dict(outcome.error)))
    # An attempt that was lost with its instance is not one of the function's.
    if options.allows_retry(outcome.error, outcome.attempt - call.lost):
        return requeue(tx, call, at=now + options.pause_s(call.id, outcome.attempt))
    return end(tx, call, CallEvent.FAIL, now=now)


def _succeeded(tx: Tx, call: CallRecord, outcome: CallOutcome, *, now: float) -> CallRecord:
    if outcome.chunks is not None and outcome.chunks > call.chunks:
        # The chunks come in another request, which this one overtook; the instance reports it again later.
        raise InvalidInput(f"chunk {call.chunks + 1} of call {call.id} is missing")
    if outcome.chunks is not None and outcome.chunks < call.chunks:
        return _gave_other_chunks(tx, call, outcome.chunks + 1, now=now)
    result = outcome.result or Payload("none")
    pin_blob(tx, call, result)
    call = call._replace(
        result_format=result.format,
        result=result.body,
        result_blob=result.blob,
        result_bytes=result.size,
        error=None,
    )
    return end(tx, call, CallEvent.SUCCEED, now=now)


def lose(tx: Tx, call_id: CallId, *, now: float) -> CallRecord | None:
    """The instance that ran it is gone: another gets it, unless it has cost too many."""
    call = tx.calls.lock(call_id)
    if call is None or call.state is not CallState.ASSIGNED:
        return None
    call = call._replace(lost=call.lost + 1)
    if call.lost < MOST_LOST:
        return requeue(tx, call, at=now)
    return fail(tx, call, _LOST_TYPE, f"it lost {call.lost} instances", now=now)


def take_back(
    tx: Tx, lease_id: LeaseId, held: Collection[str], *, before: float, now: float
) -> list[CallRecord]:
    """Queue again what the instance was assigned but does not have: the answer to it was lost."""
    return [
        requeue(tx, call, at=now)
        for call in tx.calls.of_lease(lease_id, before=before)
        if call.id not in held and not call.chunks
    ]


def add_chunks(tx: Tx, batch: ChunkBatch, lease_id: LeaseId, *, now: float) -> CallRecord | None:
    """Append what a generator gave. Repeated chunks are dropped.

    A generator that was interrupted gives everything again. If a chunk differs from the one before, the call
    ends: a reader must not get half of each.
    """
    call = tx.calls.lock(batch.call_id)
    if call is None or call.state in CALL_FINAL or not _is_of_lease(call, lease_id, batch.attempt):
        return None
    first, parts = batch.first, batch.parts
    if first > call.chunks + 1:
        raise InvalidInput(f"chunk {call.chunks + 1} of call {call.id} is missing")
    repeated = tx.calls.chunks(call.id, after=first - 1, limit=len(parts)) if first <= call.chunks else []
    earlier = {chunk.n: chunk for chunk in repeated}
    for n, part in enumerate(parts, start=first):
        if (old := earlier.get(n)) is not None:
            if (old.format, old.body, old.blob) != (part.format, part.body, part.blob):
                return _gave_other_chunks(tx, call, n, now=now)
        elif n > call.chunks:
            tx.calls.insert_chunk(Chunk(call.id, n, part.format, part.body, part.blob))
            pin_blob(tx, call, part)
            call = call._replace(chunks=n)
    tx.calls.save(call)
    tx.announce(TOPIC_CALL, call.id)
    return call


def _gave_other_chunks(tx: Tx, call: CallRecord, n: int, *, now: float) -> CallRecord:
    why = (
        f"it had given {call.chunks} chunks when it was interrupted, and number {n} was another when it "
        "ran again: a stream is continued only if the generator gives the same values twice"
    )
    return fail(tx, call, _LOST_TYPE, why, now=now)
