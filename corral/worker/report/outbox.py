"""Outcomes of several jobs travel together: what comes while a call is under way goes with the next."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from corral.client.corral import Corral
from corral.domain.errors import CorralError
from corral.wire.leases import OutcomeAnswer, OutcomeReport

MAX_AT_ONCE = 500


@dataclass(eq=False)
class _Letter:
    report: OutcomeReport
    done: threading.Event = field(default_factory=threading.Event)
    answer: OutcomeAnswer | None = None
    error: CorralError | None = None


class Outbox:
    """Safe to use from several threads; whoever finds nobody sending, sends for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Letter] = []
        self._sending = False

    def send(self, corral: Corral, report: OutcomeReport) -> OutcomeAnswer:
        """Raise what the report's own call would have raised."""
        letter = _Letter(report)
        with self._lock:
            self._waiting.append(letter)
            mine = not self._sending
            self._sending = True
        if mine:
            self._send_all(corral)
        letter.done.wait()
        if letter.error is not None:
            raise letter.error
        assert letter.answer is not None
        return letter.answer

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
        answers = corral.leases.outcomes([letter.report for letter in batch])
        for letter, (answer, error) in zip(batch, answers, strict=True):
            letter.answer, letter.error = answer, error
    except CorralError as error:
        for letter in batch:
            # Each thread gets an exception of its own: raising one adds to its traceback.
            letter.error = type(error)(error.message, hint=error.hint)
    finally:
        for letter in batch:
            if letter.answer is None and letter.error is None:
                letter.error = CorralError("the outcome was not sent")
            letter.done.set()
