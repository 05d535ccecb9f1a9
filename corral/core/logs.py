"""Logs and metrics: numbered batches into segments, pages and cursors out of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from corral.core.leases.fence import fence, owned
from corral.core.log_redaction import BegunSecrets, RecordRedactor
from corral.core.policy import ServerPolicy
from corral.core.runs.transitions import record
from corral.core.secrets import SecretRedactor
from corral.core.topics import TOPIC_LOG
from corral.domain.artifacts import Segment
from corral.domain.canonical import canonical
from corral.domain.errors import InvalidInput, SequenceGap
from corral.domain.ids import LeaseId
from corral.domain.leases import Lease, LeaseKey
from corral.domain.runs.runs import Run
from corral.domain.secrets.redact import SecretValues
from corral.ports.blobs import SegmentStore
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx

LOG, METRIC = "log", "metric"
_LATEST_METRICS = 256
# Notes are rows of the database; a program that writes thousands of them should write a log.
MAX_NOTES = 10_000
# Workers keep the log quota, counted before the JSON; this stops one that does not.
_SLACK = 4


@dataclass(frozen=True)
class LogBatch:
    """`logs` and `metrics` are lines of JSON, ready to be appended."""

    seq: int
    logs: bytes
    log_records: int
    metrics: bytes
    metric_records: int
    latest: dict[str, float]
    notes: tuple[str, ...]
    progress: str | None = None


class AppendPlan(NamedTuple):
    """The segments that a batch goes to, as they are before it; None where it has nothing for one."""

    log: Segment | None
    metric: Segment | None


def segment_key(segment: Segment) -> str:
    return f"{segment.run_id}/{segment.attempt}-{segment.rank}-{segment.stream}-{segment.n}"


def plan(tx: Tx, key: LeaseKey, batch: LogBatch, *, now: float, policy: ServerPolicy) -> AppendPlan | None:
    """Where the batch belongs; None if it was seen before; SequenceGap if one before it is missing."""
    lease = owned(tx, key)
    if not _is_next(lease, batch.seq):
        return None
    if is_over(lease, policy):
        return AppendPlan(None, None)
    return AppendPlan(
        _last(tx, lease, LOG, now, policy) if batch.logs else None,
        _last(tx, lease, METRIC, now, policy) if batch.metrics else None,
    )


def write(plan: AppendPlan, batch: LogBatch, segments: SegmentStore) -> None:
    """Append to the segments; durable, but not part of the log until `commit`. Blocks."""
    for segment, data in ((plan.log, batch.logs), (plan.metric, batch.metrics)):
        if segment is not None:
            segments.append(segment_key(segment), segment.bytes, data)


def commit(
    tx: Tx, key: LeaseKey, plan: AppendPlan, batch: LogBatch, *, now: float, policy: ServerPolicy
) -> bool:
    """Make what was appended part of the log. False if another copy of the batch came first."""
    lease, run = fence(tx, key, now=now, policy=policy)
    if not _is_next(lease, batch.seq):
        return False
    parts = ((plan.log, batch.logs, batch.log_records), (plan.metric, batch.metrics, batch.metric_records))
    for old, data, records in parts:
        if old is not None:
            tx.logs.put(old._replace(bytes=old.bytes + len(data), records=old.records + records))
    tx.leases.save(
        lease._replace(
            event_seq=batch.seq,
            log_bytes=lease.log_bytes + len(batch.logs) + len(batch.metrics),
            active_at=now,
            progress=lease.progress if batch.progress is None else batch.progress,
        )
    )
    if batch.latest:
        latest = {**json.loads(run.metrics), **batch.latest}
        run = run._replace(metrics=canonical(dict(list(latest.items())[-_LATEST_METRICS:])))
        tx.runs.save(run)
    for note in batch.notes[: max(0, MAX_NOTES - run.event_n)]:
        run = record(tx, run, "note", at=now, actor=f"host:{key.host_id}", data={"text": note})
    tx.announce(TOPIC_LOG, run.id)
    return True


@dataclass(frozen=True)
class LogWriter:
    """Appends batches: first the bytes, durably, then the row that makes them count."""

    store: Store
    segments: SegmentStore
    redactor: SecretRedactor
    clock: Clock
    policy: ServerPolicy
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    # One batch at a time for a lease: two must not be appended at the same place. A lock goes with its last
    # user, since leases end in many ways and not all of them say so.
    _locks: WeakValueDictionary[LeaseId, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    begun_secrets: BegunSecrets = field(default_factory=BegunSecrets)

    async def append(
        self, key: LeaseKey, batch_of: Callable[[RecordRedactor | None], LogBatch]
    ) -> int | None:
        """None if the batch was accepted; otherwise the number of the batch that the lease expects.

        `batch_of` makes the batch without secrets: the worker took out those that it gave the run, and never
        has the others of the project.
        """
        batch = batch_of(None)

        def look(tx: Tx) -> tuple[AppendPlan | None, SecretValues | None, int]:
            found = plan(tx, key, batch, now=self.clock.now(), policy=self.policy)
            lease = owned(tx, key)
            return found, self.redactor.of(tx, lease.project), lease.event_seq + 1

        async with self._locks.setdefault(key.id, asyncio.Lock()):
            where, values, expected = await self.store.read(look)
            if where is None:
                return expected
            begun = self.begun_secrets.before(key.id, batch.seq)
            redactor = RecordRedactor(values or SecretValues({}), begun)
            if values is not None or begun:
                batch = await self.in_thread(partial(batch_of, redactor))
            await self.in_thread(partial(write, where, batch, self.segments))
            unit = partial(commit, key=key, plan=where, batch=batch, now=self.clock.now(), policy=self.policy)
            if not await self.store.write(unit):
                return batch.seq + 1
            # Only now: a batch that comes again, since it was not accepted, begins where this one began.
            self.begun_secrets.keep(key.id, batch.seq, redactor.begun())
            return None


def is_over(lease: Lease, policy: ServerPolicy) -> bool:
    """Whether nothing more of what the lease's worker sends is kept: logs and metrics taken together."""
    return lease.log_bytes >= policy.log_quota_bytes * _SLACK


def left_bytes(tx: Tx, run: Run, policy: ServerPolicy) -> int:
    """What is left of the run's log quota for an attempt that begins."""
    if run.attempt <= 1:
        return policy.log_quota_bytes
    used = sum(segment.bytes for segment in tx.logs.segments(run.id, LOG))
    return max(0, policy.log_quota_bytes - used)


def _is_next(lease: Lease, seq: int) -> bool:
    if seq > lease.event_seq + 1:
        raise SequenceGap(f"lease {lease.id} expects batch {lease.event_seq + 1}, not {seq}")
    return seq == lease.event_seq + 1


def _last(tx: Tx, lease: Lease, stream: str, now: float, policy: ServerPolicy) -> Segment:
    """The segment that has room; a new one if the last is full."""
    last = tx.logs.last(lease.run_id, lease.attempt, lease.rank, stream)
    if last is not None and last.bytes < policy.segment_bytes:
        return last
    n = 0 if last is None else last.n + 1
    return Segment(lease.run_id, lease.attempt, lease.rank, stream, n, 0, 0, now)


class Cursor(NamedTuple):
    """A place in a run's stream: which segment, and how far into it."""

    attempt: int = 0
    rank: int = 0
    n: int = 0
    offset: int = 0

    def render(self) -> str:
        return ".".join(str(part) for part in self)


def parse_cursor(text: str | None) -> Cursor:
    if not text:
        return Cursor()
    parts = text.split(".")
    if len(parts) != 4 or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts):
        raise InvalidInput(f"not a log cursor: {text[:60]!r}", hint="Use the `next` of an earlier page.")
    return Cursor(*(int(part) for part in parts))


class StoredLine(NamedTuple):
    segment: Segment
    record: list[Any]
    after: Cursor


def read_lines(
    segments: list[Segment], store: SegmentStore, cursor: Cursor, *, limit: int, max_bytes: int = 1 << 20
) -> Iterator[StoredLine]:
    """Up to `limit` records after the cursor; of output that the disk has lost a line says so. Blocks."""
    left = limit
    for segment in segments:
        place = (segment.attempt, segment.rank, segment.n)
        if place < cursor[:3]:
            continue
        offset = cursor.offset if place == cursor[:3] else 0
        while offset < segment.bytes and left > 0:
            chunk = _read(store, segment, offset, min(max_bytes, segment.bytes - offset))
            end = chunk.rfind(b"\n") + 1
            if not end and len(chunk) < max_bytes:
                # Nothing more can be read here, though the row says so. Others may be whole.
                yield from _told_lost(segment, offset)
                break
            if not end:
                # One record longer than a chunk: take all that is left of the segment.
                max_bytes *= 4
                continue
            for raw in chunk[:end].split(b"\n")[:-1]:
                offset += len(raw) + 1
                record = _parse(raw)
                if record is None:
                    continue
                yield StoredLine(segment, record, Cursor(*place, offset))
                left -= 1
                if left == 0:
                    return


def _told_lost(segment: Segment, offset: int) -> Iterator[StoredLine]:
    if segment.stream == LOG:
        text = (
            f"{segment.bytes - offset} bytes of the output are lost here; `corral fsck` names what is damaged"
        )
        after = Cursor(segment.attempt, segment.rank, segment.n, segment.bytes)
        yield StoredLine(segment, [segment.created_at, "corral", False, text], after)


def _read(store: SegmentStore, segment: Segment, start: int, length: int) -> bytes:
    try:
        return store.read(segment_key(segment), start, length)
    except KeyError:
        return b""


def _parse(raw: bytes) -> list[Any] | None:
    try:
        record = json.loads(raw)
    except ValueError:
        return None
    return record if isinstance(record, list) else None


def tail_cursor(segments: list[Segment], records: int) -> Cursor:
    """A cursor from which at least the last `records` are read, cut at a segment's beginning."""
    seen = 0
    for segment in reversed(segments):
        seen += segment.records
        if seen >= records:
            return Cursor(segment.attempt, segment.rank, segment.n, 0)
    return Cursor()


def position(run_segments: list[Segment]) -> Cursor:
    """The end of what is there."""
    if not run_segments:
        return Cursor()
    last = run_segments[-1]
    return Cursor(last.attempt, last.rank, last.n, last.bytes)
