"""The calls of a running instance: the state machine behind a lock, joined to the instance's channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from corral.wire.calls import AssignedCall
from corral.wire.payloads import PayloadBody
from corral.worker.instance.calls import InstanceCall, InstanceCalls
from corral.worker.instance.channel import InstanceChannel


class LiveCalls:
    """Safe to use from several threads. `lock` guards `state`; the feed and the mailer wait on it."""

    def __init__(self, state: InstanceCalls, channel: InstanceChannel) -> None:
        self.state = state
        self.lock = threading.RLock()
        self.feed_wakes = threading.Condition(self.lock)
        self.mailer_wakes = threading.Condition(self.lock)
        self._channel = channel

    @contextmanager
    def changing(self) -> Iterator[InstanceCalls]:
        """The state, under the lock; whoever tells the server is woken if there is news afterwards."""
        with self.lock:
            had_news = self.state.has_news
            yield self.state
            if self.state.has_news:
                self._wake_one(is_first_news=not had_news)

    def ready(self) -> None:
        with self.lock:
            self.state.is_ready = True
            self._wake_all()

    def gone(self) -> None:
        """The instance has ended: what it did not answer is the server's to give to another."""
        with self.lock:
            self.state.is_gone = True
            self._wake_all()

    def take(self, assigned: AssignedCall) -> InstanceCall | None:
        with self.changing() as state:
            return state.take(assigned, time.monotonic())

    def queue(self, call: InstanceCall) -> bool:
        """To the instance as soon as it has room; False if nobody wants the call any more."""
        with self.lock:
            if not self.state.queue(call):
                return False
            begun = self.state.begin(time.monotonic())
        self._hand_over(begun)
        return True

    def settle(self, call_id: str, *, ran_s: float = 0.0, **how: Any) -> None:
        with self.changing() as state:
            now = time.monotonic()
            if not state.settle(call_id, now, ran_s=ran_s, **how):
                return
            begun = state.begin(now)
        self._hand_over(begun)

    def settle_ended(self, call_id: str, *, ran_s: float) -> None:
        """The instance says that it ended a call as it was told to."""
        with self.lock:
            how = self.state.ending(call_id)
        self.settle(call_id, ran_s=ran_s, **how)

    def add_chunk(self, call_id: str, n: int, payload: PayloadBody) -> None:
        with self.changing() as state:
            state.add_chunk(call_id, n, payload, time.monotonic())

    def cancel(self, call_id: str) -> None:
        with self.lock:
            call = self.state.cancel(call_id, time.monotonic())
        if call is None:
            return
        if call.began_at is None:
            self.settle(call_id, cancelled=True)
        else:
            self.tell_to_end(call_id)

    def tell_to_end(self, call_id: str) -> None:
        self._channel.send({"t": "cancel", "id": call_id})

    def stop(self) -> None:
        """No more calls; the instance ends when those that it has are done."""
        with self.lock:
            if not self.state.stop(time.monotonic()):
                return
            self._wake_all()
        threading.Thread(target=self._stop_when_idle, name="corral-instance-stop", daemon=True).start()

    def _stop_when_idle(self) -> None:
        while not self.state.is_idle and not self.state.is_gone:
            time.sleep(0.02)
        self._channel.send({"t": "stop"})

    def _hand_over(self, begun: list[InstanceCall]) -> None:
        """Not under the lock: an instance that does not listen must not keep us from ending it."""
        for call in begun:
            self._channel.send(call.message(), call.body)
            call.body = b""

    def _wake_all(self) -> None:
        self.feed_wakes.notify_all()
        self.mailer_wakes.notify_all()

    def _wake_one(self, *, is_first_news: bool) -> None:
        """Whoever tells the server: the feed with its next request, or else the mailer, woken once."""
        state = self.state
        if not state.is_asking and (state.is_full or state.wanted(time.monotonic())):
            self.feed_wakes.notify_all()
        elif is_first_news:
            self.mailer_wakes.notify_all()
