"""Tells the server outcomes that no request for calls takes along, and hears of calls to be cancelled."""

from __future__ import annotations

import time
from dataclasses import dataclass

from corral.domain.errors import CorralError, LeaseLost, NotFound
from corral.wire.calls import LeaseCallsRequest
from corral.worker.instance.calls import LOOK_S
from corral.worker.instance.live_calls import LiveCalls
from corral.worker.lease_session import LeaseSession


@dataclass(frozen=True)
class OutcomeMailer:
    """`run` in a thread of its own until the instance is gone, then `send_rest`."""

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
            answer = self.session.begin_exchange(request)()
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
