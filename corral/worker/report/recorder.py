"""Gathers a lease's log, metrics and notes into batches, several times a second."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Literal

from pydantic import JsonValue as Json

from corral.wire.logs import LogRecord, MetricRecord
from corral.worker.child.events_file import PROGRESS_MAX_BYTES, PROGRESS_MAX_KEYS
from corral.worker.report.spool import Spool

Stream = Literal["stdout", "stderr", "corral"]

SEAL_EVERY_S = 0.25
SEAL_BYTES = 256 << 10
SEAL_RECORDS = 5_000
# A record costs more than its text, on disk and on the way; a million empty lines are not free.
RECORD_COST_BYTES = 64
# More than any training writes; a child in a loop must not fill the host's disk with numbers.
MAX_METRICS = 2_000_000
MAX_NOTES = 1_000


class Recorder:
    """Safe to use from several threads. What one thread records stays in its order."""

    def __init__(self, spool: Spool, *, now: Callable[[], float] = time.time) -> None:
        self._spool = spool
        self._now = now
        self._lock = threading.Lock()
        self._logs: list[LogRecord] = []
        self._metrics: list[MetricRecord] = []
        self._notes: list[str] = []
        self._progress: dict[str, Json] = {}
        self._progressed = False
        self._bytes = 0
        self._sealed_at = float("-inf")
        self._metrics_seen = 0
        self._notes_seen = 0
        self.active_at = time.monotonic()
        self.problem: OSError | None = None

    def log(self, stream: Stream, pieces: Iterable[tuple[str, bool]], call: str | None = None) -> None:
        """Pieces of output as (text, partial); of an instance, with the call that they belong to."""
        at = self._now()
        with self._lock:
            for text, partial in pieces:
                self._logs.append(LogRecord(at=at, stream=stream, text=text, partial=partial, call=call))
                self._grow(len(text))

    def say(self, text: str) -> None:
        """A remark of Corral's own, in the run's log."""
        self.log("corral", [(line[:16_000], False) for line in text.splitlines() or [""]])

    def metric(self, name: str, value: float, step: int | None) -> None:
        with self._lock:
            self._metrics_seen += 1
            if self._metrics_seen <= MAX_METRICS:
                self._metrics.append(MetricRecord(at=self._now(), name=name, value=value, step=step))
                self._grow(len(name))
        if self._metrics_seen == MAX_METRICS + 1:
            self.say(f"the run has sent {MAX_METRICS} metric values; no more are kept")

    def note(self, text: str) -> None:
        with self._lock:
            self._notes_seen += 1
            if self._notes_seen <= MAX_NOTES:
                self._notes.append(text[:10_000])
                self._grow(len(text))
        if self._notes_seen == MAX_NOTES + 1:
            self.say(f"the run has sent {MAX_NOTES} notes; no more are kept")

    def progress(self, values: dict[str, Json]) -> None:
        """Progress that the child reports; the next batch carries every value known so far."""
        with self._lock:
            # The newest keys stay: a batch holds only so much, and one that is too large is refused.
            merged = dict(list({**self._progress, **values}.items())[-PROGRESS_MAX_KEYS:])
            fits = len(json.dumps(merged)) <= 2 * PROGRESS_MAX_BYTES
            self._progress = merged if fits else values
            self._progressed = True
            self._bytes += RECORD_COST_BYTES

    def active(self) -> None:
        """The child gave a sign of life."""
        self.active_at = time.monotonic()

    def due_in_s(self) -> float | None:
        """When `tick` will have something to do; None while there is nothing."""
        with self._lock:
            if not self._bytes:
                return None
            return max(0.0, self._sealed_at + SEAL_EVERY_S - time.monotonic())

    def tick(self) -> None:
        """Seal what waits, unless the last batch was sealed a moment ago: the first line goes at once."""
        with self._lock:
            if self._bytes and time.monotonic() - self._sealed_at >= SEAL_EVERY_S:
                self._seal()

    def flush(self) -> None:
        with self._lock:
            if self._bytes:
                self._seal()

    def _grow(self, text_bytes: int) -> None:
        self._bytes += RECORD_COST_BYTES + text_bytes
        if self._bytes >= SEAL_BYTES or len(self._logs) + len(self._metrics) >= SEAL_RECORDS:
            self._seal()

    def _seal(self) -> None:
        try:
            progress = self._progress if self._progressed else None
            self._spool.append(logs=self._logs, metrics=self._metrics, notes=self._notes, progress=progress)
        except OSError as error:
            # The job sees it and ends the run; here the child's output must still be read.
            self.problem = error
        self._logs, self._metrics, self._notes = [], [], []
        self._progressed = False
        self._bytes = 0
        self._sealed_at = time.monotonic()
