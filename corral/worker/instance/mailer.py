"""Tells the server outcomes that no request for calls takes along, and hears of calls to be cancelled."""

from __future__ import annotations

import time

from corral.domain.errors import CorralError, LeaseLost, NotFound
from corral.wire.calls import LeaseCallsRequest
from corral.worker.instance.calls import LOOK_S
from corral.worker.instance.live_calls import LiveCalls
from corral.worker.lease_session import LeaseSession


class OutcomeMailer:
    """`run` in a thread of its own until the instance is gone, then `send_rest`."""

    def __init__(self, session: LeaseSession, calls: LiveCalls) -> None:
        self._session = session
        self._calls = calls

    def run(self) -> None:
        calls, state = self._calls, self._calls.state
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
        with self._calls.lock:
            if not self._calls.state.has_news:
                return
            request = self._calls.state.request(time.monotonic())
        self._send(request.model_copy(update={"holding": []}))

    def _send(self, request: LeaseCallsRequest) -> None:
        calls = self._calls
        try:
            answer = self._session.begin_exchange(request)()
        except (LeaseLost, NotFound) as error:
            self._session.control.lose(error.message)
            return
        except CorralError:
            with calls.lock:
                calls.state.unanswered(request, time.monotonic())
            self._session.link.look_again()
            time.sleep(LOOK_S)
            return
        with calls.lock:
            calls.state.answered(request, len(answer.calls))
        self._session.link.answered()
        for call_id in answer.cancelled:
            calls.cancel(call_id)
