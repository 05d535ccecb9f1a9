"""Listens to the worker: in the main thread while it is idle, so that a short call never changes threads.

While the main thread runs user code that lasts, or that waits for an answer, another thread stands in. Waking
that thread for every call would take longer than most calls: it looks now and then as long as there are any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from corral.instance.channel import Channel

# After this long in a call another thread stands in for the main one.
TICK_S = 0.005
# How soon the main thread may listen again once its call has ended.
_LOOK_S = 0.05


class MessageListener:
    """`handle` gets each message; `free` is called when the main thread may listen again."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._handle: Callable[[dict[str, Any], bytes], None] = lambda *_: None
        self._free: Callable[[], None] = lambda: None
        self._listening = threading.Lock()
        # Each time the main thread goes away is a turn of its own.
        self._turn = 0
        self._is_away = False
        self._in_use = threading.Event()
        self._urgent = threading.Event()

    def start(self, handle: Callable[[dict[str, Any], bytes], None], free: Callable[[], None]) -> None:
        self._handle, self._free = handle, free
        threading.Thread(target=self._stand_in, name="corral-listener", daemon=True).start()

    def listen(self, wait_s: float) -> bool | None:
        """In the main thread, for one message: False if none came, None while the other thread listens."""
        if not self._listening.acquire(blocking=False):
            return None
        try:
            if not self._channel.wait(wait_s):
                return False
            self._hear()
            return True
        finally:
            self._listening.release()

    def away(self) -> None:
        """The main thread runs user code."""
        self._turn += 1
        self._is_away = True
        if not self._in_use.is_set():
            self._in_use.set()

    def back(self) -> None:
        self._is_away = False

    def needed(self) -> None:
        """Somebody waits for an answer."""
        self._urgent.set()

    def _hear(self) -> None:
        message = self._channel.receive()
        if message is None:
            # The worker is gone, and the shim ends us: nothing that we do reaches anybody.
            os._exit(1)
        self._handle(*message)

    def _stand_in(self) -> None:
        while True:
            self._in_use.wait()
            turn = self._turn
            urgent = self._urgent.wait(TICK_S)
            self._urgent.clear()
            if self._is_away and (urgent or self._turn == turn):
                self._listen_for(self._turn)
            elif self._turn == turn:
                self._in_use.clear()
                if self._is_away:
                    # It left just now, and may have found the event still set.
                    self._in_use.set()

    def _listen_for(self, turn: int) -> None:
        with self._listening:
            while self._is_away and self._turn == turn:
                if self._channel.wait(_LOOK_S):
                    self._hear()
        self._free()
