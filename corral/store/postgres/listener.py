"""Listens for what the commits of other servers announce."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection

import psycopg

from corral.store.postgres.connection import Raw, connect

CHANNEL = "corral"
_RECONNECT_S = 1.0
# Only a safety net: a store that closes wakes the thread itself.
_WAIT_S = 30.0

log = logging.getLogger(__name__)


def payload(topic: str, key: str) -> str:
    return f"{topic} {key}"


class AnnouncementListener:
    """A thread with its own connection. It reconnects by itself, and misses what is announced in between.

    `ignored` are the backends whose notifications are not passed on.
    """

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        heard: Callable[[str, str], None],
        ignored: Collection[int],
    ) -> None:
        self.loop = loop
        self._url = url
        self._heard = heard
        self._ignored = ignored
        self._stop = threading.Event()
        self._raw: Raw | None = None
        self.listening = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="corral-listen", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        raw = self._raw
        if raw is not None and not raw.closed:
            # Wakes the thread, which waits on this socket.
            with socket.socket(fileno=os.dup(raw.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                if not self._stop.is_set():
                    log.warning("the listener lost the database and tries again: %s", error)
            self._stop.wait(_RECONNECT_S)

    def _listen(self) -> None:
        with connect(self._url) as raw:
            self._raw = raw
            raw.execute(f"LISTEN {CHANNEL}".encode())
            self.loop.call_soon_threadsafe(self.listening.set)
            while not self._stop.is_set():
                for notice in raw.notifies(timeout=_WAIT_S):
                    if notice.pid not in self._ignored:
                        topic, _, key = notice.payload.partition(" ")
                        self.loop.call_soon_threadsafe(self._heard, topic, key)
