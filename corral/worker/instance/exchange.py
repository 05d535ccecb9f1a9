"""What an instance exchanges with the server: calls that it has room for, and their outcomes."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from corral.domain.errors import CorralError, LeaseLost, NotFound
from corral.wire.calls import AssignedCall, LeaseCallsAnswer, LeaseCallsRequest
from corral.worker.instance.calls import LOOK_S, SHORT_S
from corral.worker.instance.live_calls import LiveCalls
from corral.worker.instance.payloads import InstancePayloads
from corral.worker.lease import LeaseSession
from corral.worker.server_link import PASSING, Pauses

logger = logging.getLogger(__name__)

POLL_S = 20.0


class CallFeed:
    """Fetches calls while there is room for them, and brings their arguments.

    `run` in a thread of its own, until the instance takes no more calls.
    """

    def __init__(self, session: LeaseSession, calls: LiveCalls, payloads: InstancePayloads) -> None:
        self._session = session
        self._calls = calls
        self._payloads = payloads

    def run(self) -> None:
        pauses = Pauses()
        while (request := self._next_request()) is not None:
            try:
                answer = self._session.exchange(request)
            except CorralError as error:
                self._asked(request, None)
                if isinstance(error, LeaseLost | NotFound):
                    self._session.control.lose(error.message)
                    return
                if isinstance(error, PASSING):
                    self._session.link.look_again()
                else:
                    logger.error(
                        "the server refuses the calls of %s: %s", self._session.lease.id, error.message
                    )
                time.sleep(pauses.next_s())
                continue
            self._asked(request, answer)
            pauses.reset()
            self._session.link.answered()
            self._take(answer)

    def _asked(self, request: LeaseCallsRequest, answer: LeaseCallsAnswer | None) -> None:
        calls = self._calls
        with calls.lock:
            calls.state.is_asking = False
            if answer is None:
                calls.state.unanswered(request, time.monotonic())
            else:
                calls.state.answered(request, len(answer.calls))

    def _next_request(self) -> LeaseCallsRequest | None:
        """Wait until there is one to make; None when no more calls are taken."""
        calls, state = self._calls, self._calls.state
        with calls.lock:
            while not (state.takes_no_more or (want := self._wanted())):
                # With room left it is only a matter of time: a call that takes longer than others did
                # is not waited for.
                state.is_full = state.room(time.monotonic()) <= 0
                calls.feed_wakes.wait(None if state.is_full else SHORT_S)
            if state.takes_no_more:
                return None
            state.is_asking, state.is_full = True, False
            return state.request(time.monotonic(), want=want, wait_s=POLL_S)

    def _wanted(self) -> int:
        self._calls.state.is_closing = self._session.control.stop_order() is not None
        return self._calls.state.wanted(time.monotonic())

    def _take(self, answer: LeaseCallsAnswer) -> None:
        for call_id in answer.cancelled:
            self._calls.cancel(call_id)
        for assigned in answer.calls:
            try:
                self._bring(assigned)
            except (CorralError, OSError, ValueError) as error:
                why = f"its arguments could not be brought to the instance: {error}"
                self._calls.settle(
                    assigned.id, error={"type": "CannotStart", "message": why, "bases": ["CannotStart"]}
                )
        if answer.stop and not answer.calls:
            self._calls.stop()

    def _bring(self, assigned: AssignedCall) -> None:
        call = self._calls.take(assigned)
        if call is None:
            return
        call.body, call.path = self._payloads.bring(assigned.args)
        if not self._calls.queue(call) and call.path is not None:
            self._payloads.drop(self._payloads.own(call.path))


@dataclass(frozen=True)
class OutcomeMailer:
    """Tells outcomes that no request for calls takes along, and hears of calls to be cancelled.

    `run` in a thread of its own until the instance is gone, then `send_rest`.
    """

    session: LeaseSession
    calls: LiveCalls

    def run(self) -> None:
        calls, state = self.calls, self.calls.state
        looked_at = time.monotonic()
        while True:
            with calls.lock:
                while not state.is_gone and (wait_s := state.tell_in_s(looked_at, time.monotonic())):
                    calls.mailer_wakes.wait(wait_s)
                if state.is_gone:
                    return
                request = state.request(time.monotonic())
            self._send(request)
            looked_at = time.monotonic()

    def send_rest(self) -> None:
        """Nothing is held any more; what is left to tell is told once."""
        with self.calls.lock:
            if not self.calls.state.has_news:
                return
            request = self.calls.state.request(time.monotonic())
        self._send(request.model_copy(update={"holding": []}))

    def _send(self, request: LeaseCallsRequest) -> None:
        calls = self.calls
        try:
            answer = self.session.exchange(request)
        except (LeaseLost, NotFound) as error:
            self.session.control.lose(error.message)
            return
        except CorralError:
            with calls.lock:
                calls.state.unanswered(request, time.monotonic())
            self.session.link.look_again()
            time.sleep(LOOK_S)
            return
        with calls.lock:
            calls.state.answered(request, len(answer.calls))
        self.session.link.answered()
        for call_id in answer.cancelled:
            calls.cancel(call_id)
