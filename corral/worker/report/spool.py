"""Batches of a lease's records on disk, numbered from 1, and sent until the server has accepted them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue as Json

from corral.domain.errors import CorralError, LeaseLost, NotFound, SequenceGap
from corral.files.atomic import write_whole
from corral.files.private import private_folder
from corral.files.untrusted import read_regular
from corral.wire.logs import EventBatch, LogRecord, MetricRecord
from corral.worker.lease import LeaseSession
from corral.worker.server_link import PASSING, Pauses

_LOOK_UP_S = 30.0
# While the disk is full, this much is kept in memory before the run has to fail.
HELD_MAX_BYTES = 4 << 20
BATCH_MAX_BYTES = 64 << 20

logger = logging.getLogger(__name__)


class Spool:
    """One lease's batches. Safe to use from several threads.

    The newest file stays after it was accepted: it tells the next worker which number comes next, and
    sending it again changes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        private_folder(folder)
        numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]
        self._changed = threading.Condition()
        # The oldest number that may still have to be sent.
        self.first = min(numbers, default=1)
        self._last = max(numbers, default=0)
        self.closed = False
        self._held: dict[int, bytes] = {}

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
                data = read_regular(self._path(seq), limit=BATCH_MAX_BYTES)
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
            for number in range(self.first, min(seq, self._last - 1) + 1):
                self._held.pop(number, None)
                with suppress(OSError):
                    self._path(number).unlink()
            # The server may know more numbers than a disk that lost its newest files.
            self._last = max(self._last, seq)
            self.first = max(self.first, min(seq + 1, self._last))

    def wait_for(self, seq: int, timeout_s: float) -> bool:
        """Whether the batch is there, after at most this long; at once when the spool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._last >= seq or self.closed, timeout_s)
            return self._last >= seq

    def close(self) -> None:
        """No batch will be appended any more."""
        with self._changed:
            self.closed = True
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


class BatchSender:
    """A thread that sends a lease's batches in order, for as long as it takes."""

    def __init__(self, spool: Spool, session: LeaseSession) -> None:
        self._spool = spool
        self._session = session
        self._next = spool.first
        self._replaced: EventBatch | None = None
        self._thread = threading.Thread(target=self._run, name="corral-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Return when everything was accepted, or the lease is lost. Closes the spool."""
        self._spool.close()
        self._thread.join()

    def _run(self) -> None:
        pauses, control = Pauses(), self._session.control
        while not control.given_up.is_set():
            if not self._spool.wait_for(self._next, _LOOK_UP_S):
                if self._spool.closed:
                    return
                continue
            try:
                self._step()
                pauses.reset()
            except (LeaseLost, NotFound) as error:
                control.lose(error.message)
                return
            except CorralError as error:
                logger.debug("batch %d waits: %s", self._next, error)
                self._session.link.look_again()
                control.given_up.wait(pauses.next_s())

    def _step(self) -> None:
        batch = self._replaced or self._spool.get(self._next)
        if batch is None:
            return
        link, lease = self._session.link, self._session.lease
        try:
            answer = link.corral.leases.send_events(lease.id, lease.epoch, batch)
        except SequenceGap:
            # The server lost some. Sent a batch that it has seen, it names the one it wants.
            self._next, self._replaced = 1, None
            return
        except (*PASSING, LeaseLost, NotFound):
            raise
        except CorralError as error:
            if self._replaced is not None:
                raise
            # It is refused for good. A note takes its place, or nothing after it would ever arrive.
            logger.error("batch %d was refused: %s", batch.seq, error)
            self._replaced = self._spool.lost(batch.seq, f"the server refused it: {error.message[:500]}")
            return
        link.answered()
        self._replaced = None
        self._spool.accepted(answer.next_seq - 1)
        self._next = answer.next_seq
