"""Delivers how leases ended. Outcomes that come while a request is under way travel together in the next."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from corral.client.corral import Corral
from corral.domain.errors import AlreadyFinal, BlobMissing, CorralError, LeaseLost, NotFound
from corral.domain.runs.reasons import Reason
from corral.wire.leases import FailRequest, OutcomeAnswer, OutcomeReport
from corral.worker.child.verdict import failed
from corral.worker.lease import LeaseSession
from corral.worker.prepare.workspace import JobOutcome

MAX_AT_ONCE = 500

logger = logging.getLogger(__name__)

# A report, and what its sender waits for.
_Letter = tuple[OutcomeReport, Future[OutcomeAnswer]]


class Outbox:
    """Safe to use from several threads: the first to find that nobody is sending sends for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Letter] = []
        self._sending = False

    def send(self, corral: Corral, report: OutcomeReport) -> OutcomeAnswer:
        """Raise what the report's own call would have raised."""
        answer: Future[OutcomeAnswer] = Future()
        with self._lock:
            self._waiting.append((report, answer))
            mine = not self._sending
            self._sending = True
        if mine:
            self._send_all(corral)
        return answer.result()

    def _send_all(self, corral: Corral) -> None:
        while True:
            with self._lock:
                batch, self._waiting = self._waiting[:MAX_AT_ONCE], self._waiting[MAX_AT_ONCE:]
                if not batch:
                    self._sending = False
                    return
            _post(corral, batch)


def _post(corral: Corral, batch: list[_Letter]) -> None:
    try:
        answers = corral.leases.outcomes([report for report, _ in batch])
        for (_, future), (answer, error) in zip(batch, answers, strict=True):
            if error is not None:
                future.set_exception(error)
            elif answer is not None:
                future.set_result(answer)
    except CorralError as error:
        for _, future in batch:
            # Each thread gets an exception of its own: raising one adds to its traceback.
            future.set_exception(type(error)(error.message, hint=error.hint))
    finally:
        for _, future in batch:
            if not future.done():
                future.set_exception(CorralError("the outcome was not sent"))


def deliver(outbox: Outbox, session: LeaseSession, outcome: JobOutcome) -> None:
    """Return when the server has it or refuses it for good. BlobMissing: the output must be sent again."""
    lease = session.lease
    report = OutcomeReport.model_validate(
        {"lease_id": lease.id, "epoch": lease.epoch, outcome.kind: outcome.body}
    )
    try:
        answer = session.keep_trying(lambda corral: outbox.send(corral, report))
        logger.info("%s of %s: %s, the run is %s", lease.id, lease.run_id, outcome.kind, answer.run_state)
    except (LeaseLost, NotFound) as error:
        session.control.lose(error.message)
    except AlreadyFinal as error:
        logger.info("%s had ended before: %s", lease.id, error)
    except BlobMissing:
        raise
    except CorralError as error:
        logger.error("the outcome of %s was refused: %s", lease.id, error)
        if not isinstance(outcome.body, FailRequest):
            refused = failed(Reason.UNKNOWN, f"the outcome was refused: {error.message}")
            deliver(outbox, session, refused)
