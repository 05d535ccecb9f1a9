"""The open connections of a client, to break off a call that another thread waits for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import httpx

_MADE = ("connect_tcp.complete", "start_tls.complete")


class OpenSockets:
    """Learns of connections through httpcore's trace of each request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def follow(self, request: httpx.Request) -> None:
        request.extensions = {**request.extensions, "trace": self._traced}

    def shut(self) -> None:
        """End every connection. A thread that reads from one wakes at once, which closing it would not do."""
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _traced(self, name: str, info: Mapping[str, Any]) -> None:
        if name.endswith(_MADE):
            made = info["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets.add(made)
