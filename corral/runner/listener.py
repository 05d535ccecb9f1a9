"""Who listens to the worker: the main thread while it has nothing to do, so that a call changes no threads.

While it runs code of the user's that lasts, or that waits for an answer, a thread stands in for it. To wake
that thread for every call would take longer than most calls: it looks now and then as long as there are any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from corral.runner.channel import Channel

# After this long in a call the main thread is stood in for.
TICK_S = 0.005
# How soon it may listen again itself once it is back.
_LOOK_S = 0.05


class Ears:
    """`handle` is given what is heard; `free` is called when the main thread may listen again."""

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
        threading.Thread(target=self._stand_in, name="corral-ears", daemon=True).start()

    def listen(self, wait_s: float) -> bool | None:
        """In the main thread, for one message: False if none came, None if somebody stands in just now."""
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
        """The main thread runs what is not ours."""
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
            # The worker is gone, and the shim will end us; nothing that we could do would reach anybody.
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
                    # It went just now, and may have found it set.
                    self._in_use.set()

    def _listen_for(self, turn: int) -> None:
        with self._listening:
            while self._is_away and self._turn == turn:
                if self._channel.wait(_LOOK_S):
                    self._hear()
        self._free()
