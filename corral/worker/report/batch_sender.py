"""Sends a lease's batches in order, for as long as it takes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from corral.domain.errors import CorralError, LeaseLost, NotFound, SequenceGap
from corral.wire.logs import EventAnswer, EventBatch
from corral.worker.report.spool import Spool
from corral.worker.server_link import PASSING, Pauses

Send = Callable[[EventBatch], EventAnswer]
_LOOK_UP_S = 30.0

logger = logging.getLogger(__name__)


class BatchSender:
    """A thread that empties a spool. `look_again` is called whenever the server was away."""

    def __init__(
        self,
        spool: Spool,
        send: Send,
        *,
        lost: Callable[[str], None],
        given_up: threading.Event,
        look_again: Callable[[], None],
    ) -> None:
        self._spool = spool
        self._send = send
        self._lost = lost
        self._given_up = given_up
        self._look_again = look_again
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
        pauses = Pauses()
        while not self._given_up.is_set():
            if not self._spool.wait_for(self._next, _LOOK_UP_S):
                if self._spool.closed:
                    return
                continue
            try:
                self._step()
                pauses.reset()
            except (LeaseLost, NotFound) as error:
                self._lost(error.message)
                return
            except CorralError as error:
                logger.debug("batch %d waits: %s", self._next, error)
                self._look_again()
                self._given_up.wait(pauses.next_s())

    def _step(self) -> None:
        batch = self._replaced or self._spool.get(self._next)
        if batch is None:
            return
        try:
            answer = self._send(batch)
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
        self._replaced = None
        self._spool.accepted(answer.next_seq - 1)
        self._next = answer.next_seq
