"""Batches of a lease's records on disk, numbered from 1, until the server has accepted them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue as Json

from corral.files.atomic import write_whole
from corral.wire.logs import EventBatch, LogRecord, MetricRecord

# While the disk is full, this much is kept in memory before the run has to fail.
HELD_MAX_BYTES = 4 << 20


class Spool:
    """One lease's batches. Safe to use from several threads.

    The newest file stays after it was accepted: it tells the next worker which number comes next, and
    sending it again changes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]
        self._changed = threading.Condition()
        self._first = min(numbers, default=1)
        self._last = max(numbers, default=0)
        self._closed = False
        self._held: dict[int, bytes] = {}

    @property
    def first(self) -> int:
        """The oldest number that may still have to be sent."""
        return self._first

    def append(
        self,
        *,
        logs: Sequence[LogRecord] = (),
        metrics: Sequence[MetricRecord] = (),
        notes: Sequence[str] = (),
        progress: dict[str, Json] | None = None,
    ) -> int:
        """Store a batch and give it its number. OSError when neither disk nor memory can take it."""
        with self._changed:
            seq = self._last + 1
            batch = EventBatch(
                seq=seq, logs=list(logs), metrics=list(metrics), notes=list(notes), progress=progress
            )
            self._write(seq, batch.model_dump_json().encode())
            self._last = seq
            self._changed.notify_all()
            return seq

    def get(self, seq: int) -> EventBatch | None:
        """A stored batch. One that was lost with the disk's cache is replaced by a note that says so."""
        with self._changed:
            if seq > self._last:
                return None
            data = self._held.get(seq)
        if data is None:
            with suppress(OSError):
                data = self._path(seq).read_bytes()
        if not data:
            return self.lost(seq, "it was lost on the host")
        try:
            return EventBatch.model_validate_json(data)
        except ValueError:
            return self.lost(seq, "it was damaged on the host")

    def lost(self, seq: int, why: str) -> EventBatch:
        """What takes the place of a batch that cannot be sent."""
        return EventBatch(seq=seq, notes=[f"a batch of this run's log ({seq}) is missing: {why}"])

    def accepted(self, seq: int) -> None:
        """The server has this batch and all before it."""
        with self._changed:
            for number in range(self._first, min(seq, self._last - 1) + 1):
                self._held.pop(number, None)
                with suppress(OSError):
                    self._path(number).unlink()
            # The server may know more numbers than a disk that lost its newest files.
            self._last = max(self._last, seq)
            self._first = max(self._first, min(seq + 1, self._last))

    def wait_for(self, seq: int, timeout_s: float) -> bool:
        """Whether the batch is there, after at most this long; at once when the spool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._last >= seq or self._closed, timeout_s)
            return self._last >= seq

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """No batch will be appended any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _path(self, seq: int) -> Path:
        return self._folder / f"{seq:09d}.json"

    def _write(self, seq: int, data: bytes) -> None:
        try:
            # A reader, also the next worker, sees whole batches only.
            write_whole(self._path(seq), data)
        except OSError:
            if sum(map(len, self._held.values())) + len(data) > HELD_MAX_BYTES:
                raise
            self._held[seq] = data
