"""What instances report of their calls: exactly one outcome of each call is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from corral.core.calls.accept import pin_blob
from corral.core.calls.reported_errors import kept_error
from corral.core.calls.retry import retry_or_fail
from corral.core.calls.transitions import TOPIC_CALL, end, fail, requeue
from corral.core.quotas import add_payloads
from corral.core.storage.blobs import NamedBlob, check_of_lease
from corral.core.webhooks.notices import tell_of_calls
from corral.domain.calls import (
    CALL_FINAL,
    CallEvent,
    CallOutcome,
    CallRecord,
    CallState,
    Chunk,
    ChunkBatch,
    Payload,
)
from corral.domain.errors import BlobMissing, ProjectFull
from corral.domain.ids import CallId, EndpointId, LeaseId, RunId
from corral.domain.secrets.redact import SecretValues
from corral.store.transaction import Tx

# A call that killed this many instances is not given to another.
MOST_LOST = 3
_LOST_TYPE = "InstanceLost"
_NOT_KEPT_TYPE = "ResultLost"


class ReportingInstance(NamedTuple):
    """Who reports: the instance's lease and run, and the endpoint that it serves."""

    lease_id: LeaseId
    run_id: RunId
    endpoint_id: EndpointId
    # The secrets of a project, to be taken out of errors; None if it has none.
    secrets_of: Callable[[Tx, str], SecretValues | None] = lambda tx, project: None


class KeptReports(NamedTuple):
    """`changed` are calls that ended or are queued again.

    `late` are calls of which chunks are missing: they come in another request, which this one overtook. The
    instance is to report those again; the others are kept all the same.
    """

    changed: list[CallRecord]
    late: dict[CallId, str]
    # Calls that were lost with the lease, which has come back with them.
    held: Sequence[CallId] = ()


def settle(tx: Tx, by: ReportingInstance, outcomes: Sequence[CallOutcome], *, now: float) -> KeptReports:
    """Keep the outcomes of calls that the instance had. A stale or repeated outcome changes nothing."""
    kept = KeptReports([], {})
    for outcome in outcomes:
        call = _reported(tx, by, outcome.call_id, outcome.attempt)
        if call is None:
            continue
        if outcome.succeeded and (outcome.chunks or 0) > call.chunks:
            kept.late[call.id] = _missing(call)
            continue
        if call.state is CallState.QUEUED:
            if outcome.gave_back:
                # Its assignment was not written down, or it is queued again already.
                kept.changed.append(call)
                continue
            if outcome.cancelled:
                continue
            call = call._replace(lease_id=by.lease_id, run_id=by.run_id, started_at=now - outcome.ran_s)
        kept.changed.append(_settled(tx, by, call, outcome, now=now))
    tell_of_calls(tx, kept.changed, now=now)
    return kept


def _reported(tx: Tx, by: ReportingInstance, call_id: CallId, attempt: int) -> CallRecord | None:
    """The call, locked, if it is one of the endpoint that the instance may report now."""
    call = tx.calls.lock(call_id)
    if call is None or call.endpoint_id != by.endpoint_id or call.state in CALL_FINAL:
        return None
    return call if _is_of_lease(call, by.lease_id, attempt) else None


def _is_of_lease(call: CallRecord, lease_id: LeaseId, attempt: int) -> bool:
    if call.state is CallState.ASSIGNED:
        return (call.lease_id, call.attempt) == (lease_id, attempt)
    # It was thought lost and queued again, or a server died before it wrote down the assignment.
    return attempt in (call.attempt, call.attempt + 1)


def _settled(
    tx: Tx, by: ReportingInstance, call: CallRecord, outcome: CallOutcome, *, now: float
) -> CallRecord:
    if outcome.gave_back:
        # It keeps its old place in the queue, and the attempt does not count.
        return requeue(tx, call._replace(attempt=outcome.attempt - 1), at=call.ready_at)
    call = call._replace(attempt=outcome.attempt, ran_s=call.ran_s + outcome.ran_s)
    if outcome.cancelled:
        return end(tx, call, CallEvent.CANCEL, now=now)
    error = outcome.error or _not_kept(tx, by, call, outcome.result)
    if error is None:
        return _succeeded(tx, call, outcome, now=now)
    call = call._replace(error=kept_error(error, by.secrets_of(tx, call.project)))
    return retry_or_fail(tx, call, error, now=now)


def _succeeded(tx: Tx, call: CallRecord, outcome: CallOutcome, *, now: float) -> CallRecord:
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


def _not_kept(
    tx: Tx, by: ReportingInstance, call: CallRecord, payload: Payload | None
) -> Mapping[str, Any] | None:
    """Why what a call gave cannot be kept, as an error of this call alone; else it is counted."""
    try:
        if payload is not None and payload.blob is not None:
            lease = tx.leases.get(by.lease_id)
            if lease is not None:
                check_of_lease(tx, lease, [NamedBlob(payload.blob, payload.size)])
        elif payload is not None:
            add_payloads(tx, call.project, len(payload.body or b""))
    except (BlobMissing, ProjectFull) as error:
        return {"type": _NOT_KEPT_TYPE, "message": error.message, "bases": [_NOT_KEPT_TYPE]}
    return None


def lose(tx: Tx, call_id: CallId, *, now: float) -> CallRecord | None:
    """The instance that ran it is gone: another gets it, unless it has cost too many."""
    call = tx.calls.lock(call_id)
    if call is None or call.state is not CallState.ASSIGNED:
        return None
    call = call._replace(lost=call.lost + 1)
    if call.lost < MOST_LOST:
        return requeue(tx, call, at=now, lost_by=call.lease_id)
    return fail(tx, call, _LOST_TYPE, f"it lost {call.lost} instances{_last_end(tx, call)}", now=now)


def _last_end(tx: Tx, call: CallRecord) -> str:
    """How the last of its instances ended."""
    run = None if call.run_id is None else tx.runs.get(call.run_id)
    if run is None:
        return ""
    if run.exit_code is not None:
        how = f"ended with exit code {run.exit_code}"
    elif run.signal is not None:
        how = f"was killed by signal {run.signal}"
    else:
        how = f"ended: {run.detail or run.reason or 'its host was lost'}"
    return f"; the last, {run.id}, {how}"


def keep_held(tx: Tx, lease_id: LeaseId, call_ids: Sequence[CallId]) -> list[CallId]:
    """Calls that were lost with the lease, which has come back and still runs them: nobody else took them.

    They are the lease's again, as the same attempt, and the loss does not count.
    """
    kept: list[CallId] = []
    for call_id in call_ids:
        call = tx.calls.lock(call_id)
        if call is not None and (call.state, call.lease_id) == (CallState.QUEUED, lease_id):
            tx.calls.save(call.stepped(CallEvent.ASSIGN)._replace(lost=max(0, call.lost - 1)))
            kept.append(call_id)
    return kept


def take_back(
    tx: Tx, lease_id: LeaseId, held: Collection[str], *, before: float, now: float
) -> list[CallRecord]:
    """Queue again what the instance was assigned but does not have: the answer to it was lost."""
    return [
        requeue(tx, call, at=now)
        for call in tx.calls.of_lease(lease_id, before=before)
        if call.id not in held and not call.chunks
    ]


def add_chunks(tx: Tx, by: ReportingInstance, batches: Sequence[ChunkBatch], *, now: float) -> KeptReports:
    """Append what generators gave. Repeated chunks are dropped.

    A generator that was interrupted gives everything again. If a chunk differs from the one before, the call
    ends: a reader must not get half of each.
    """
    kept = KeptReports([], {})
    for batch in batches:
        call = _reported(tx, by, batch.call_id, batch.attempt)
        if call is None:
            continue
        if batch.first > call.chunks + 1:
            kept.late[call.id] = _missing(call)
            continue
        kept.changed.append(_add_batch(tx, by, call, batch, now=now))
    return kept


def _missing(call: CallRecord) -> str:
    return f"chunk {call.chunks + 1} of call {call.id} is missing"


def _add_batch(
    tx: Tx, by: ReportingInstance, call: CallRecord, batch: ChunkBatch, *, now: float
) -> CallRecord:
    first, parts = batch.first, batch.parts
    repeated = tx.calls.chunks(call.id, after=first - 1, limit=len(parts)) if first <= call.chunks else []
    earlier = {chunk.n: chunk for chunk in repeated}
    for n, part in enumerate(parts, start=first):
        if (old := earlier.get(n)) is not None:
            if (old.format, old.body, old.blob) != (part.format, part.body, part.blob):
                return _gave_other_chunks(tx, call, n, now=now)
        elif n > call.chunks:
            if (error := _not_kept(tx, by, call, part)) is not None:
                return fail(tx, call, _NOT_KEPT_TYPE, error["message"], now=now)
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
